// A client's ModelInferRequest: parsed in place, checked against the model, cut into rows; and rows of one or several
// requests written as one for the runtime that they go to. Pure: bytes in, bytes or a fault out. Fuzzed by
// tests/cpp/fuzz_infer_request.cc.
//
// A request of R rows and width W (every per-token input has shape [R, W]) is cut into R rows. Row r has the length
// that its attention mask says (index of the last non-zero + 1; W without a mask) and is padded to the runtime's
// max_length, or to the batch's longest row for a dynamic runtime. A tensor of fixed size, [R, dims...], is cut into
// rows and sent as it came; a model that has nothing else has rows of one length, that of its runtimes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "rewrite/model.h"

namespace arlo::gateway {

struct RequestLimits {
  std::int64_t max_rows = 256;
};

// A client's options for a cascade, in addition to the rows.
struct CascadeWishes {
  bool any = false;
  std::string_view point;  // an operating point, `first` or `last`; empty: that in force
  double least = -1;       // confidence that is enough; below 0: as the rules say
  std::int64_t last = -1;  // the last stage that may answer; below 0: any
  bool seeded = false;
  std::uint64_t seed = 0;  // of the soft rule, in place of the cascade's own
  bool partial = false;    // on a stream: also the answer so far of each row that goes on
  // True when rows go the cascade's default way.
  [[nodiscard]] bool usual() const { return point.empty() && least < 0 && last < 0 && !seeded; }
};

// A client's options for a pipeline.
struct FlowWishes {
  double utility = 1;         // of an answer that is right and in time
  double min_accuracy = 0;    // expected, of the ways that its rows may take
  std::string_view pin{};     // names of variants, `small>large`: other variants of their stages are not taken
  std::string_view tenant{};  // whose rows they are
  std::string_view wrong{};   // the name of an invalid parameter
};

class InferRequest {
 public:
  // Views into `body` are kept: it must outlive this object. First step; needs no model.
  MaybeFault parse(std::string_view body);

  // Second step: checks everything else against the model and finds the rows. `model` must outlive this object. If the
  // tokens of texts are made elsewhere, it fills `job` and returns UNAVAILABLE; call it again when the job is done.
  MaybeFault bind(const ModelSpec& model, const RequestLimits& limits, text::Job* job = nullptr);

  [[nodiscard]] std::string_view model_name() const { return model_name_; }
  [[nodiscard]] std::string_view model_version() const { return model_version_; }
  [[nodiscard]] std::string_view id() const { return id_; }
  [[nodiscard]] std::int64_t timeout_us() const { return timeout_us_; }  // 0: none given
  [[nodiscard]] bool bulk() const { return bulk_; }                      // of the class bulk
  [[nodiscard]] bool says_class() const { return says_class_; }
  [[nodiscard]] bool wants_final_response() const { return wants_final_response_; }
  [[nodiscard]] const std::vector<std::int32_t>& lengths() const { return lengths_; }  // per row, >= 1
  // Per row, of a model of several tasks: which one; empty: of others.
  [[nodiscard]] const std::vector<std::uint32_t>& tasks() const { return tasks_; }
  [[nodiscard]] OutputSet outputs() const { return outputs_; }  // that it asks for
  // Numbers that its vectors are cut to; 0: they are whole.
  [[nodiscard]] std::int64_t cut_to() const { return cut_to_; }
  [[nodiscard]] bool has_text() const;                     // in place of token ids
  [[nodiscard]] bool of_text() const { return of_text_; }  // the same, after bind()
  [[nodiscard]] const CascadeWishes& wishes() const { return wishes_; }
  [[nodiscard]] const FlowWishes& flow_wishes() const { return flow_wishes_; }
  // The same rows in the tokens of another vocabulary: 0 is the model's own, 1 the first of ModelSpec::wordings.
  [[nodiscard]] const InferRequest& in(std::size_t wording) const {
    return wording == 0 || others_.empty() ? *this : *others_[wording - 1];
  }
  // Sets one row of a model of tensors, in place of parse() and bind(), from the bytes of each input. These are not
  // copied and must outlive this object.
  MaybeFault bind_row(const ModelSpec& model, OutputSet outputs, std::span<const std::string_view> cells);
  // Returns a row's bytes of an input; for BYTES, those of its one element. Null data: the client sent none.
  [[nodiscard]] std::string_view cell(std::size_t row, std::size_t input) const {
    return cells_[row * model_->inputs.size() + input];
  }
  // Writes a row's token ids, for the code that selects among them; `out` is overwritten. None where rows are tensors.
  void ids(std::size_t row, std::vector<std::int64_t>& out) const;
  // True if rows of both may go to a worker as one request: they are for one model and forward the same parameters.
  [[nodiscard]] bool goes_with(const InferRequest& other) const {
    return model_ == other.model_ && forwarded_ == other.forwarded_;
  }

 private:
  friend class WorkerRequest;
  struct Tensor {
    std::string_view name;
    std::string_view datatype;
    std::int64_t shape[1 + kMostDims] = {};  // rows first
    std::size_t dims = 0;
    std::string_view contents;  // InferTensorContents, when typed
    bool typed = false;
  };

  MaybeFault parse_parameter(std::string_view entry);
  MaybeFault parse_wish(std::string_view key, std::uint32_t kind, std::uint64_t number, std::string_view text);
  void parse_flow_wish(std::string_view key, std::uint32_t kind, std::uint64_t number, std::string_view text);
  MaybeFault parse_input(std::string_view body);
  MaybeFault parse_output(std::string_view body);
  MaybeFault count_rows(const Tensor& first, const RequestLimits& limits);
  MaybeFault bind_inputs(bool raw_given);
  MaybeFault bind_input(std::size_t tensor, bool raw_given);
  // Sets all cells of an input: `each` bytes per row.
  void set_cells(std::size_t input, const char* data, std::size_t each);
  [[nodiscard]] MaybeFault missing(const InputSpec& spec) const;
  // Returns a fault that names its shape if it is wrong.
  [[nodiscard]] MaybeFault check_shape(const Tensor& tensor, const InputSpec& spec) const;
  MaybeFault decode_typed(const Tensor& tensor, const InputSpec& spec, std::size_t elements, const char** data);
  // Reads `prompt_name` and `input_type`, which are ordinary parameters to requests of token ids.
  MaybeFault add_prompt(std::vector<std::string_view>& texts);
  void forget_parameter(std::string_view entry);  // it is read here, and not sent on
  MaybeFault parse_truncate(std::uint32_t kind, std::uint64_t number, std::string_view text);
  // Makes the ids of a request with text in place of token ids (request_text.cc).
  MaybeFault bind_texts(const RequestLimits& limits, bool raw_given, text::Job* job);
  MaybeFault read_texts(std::size_t tensor, bool raw_given, std::vector<std::string_view>& out) const;
  MaybeFault make_tokens(const std::vector<std::string_view>& texts, const std::vector<std::string_view>& pairs,
                         text::Job* job);
  // Of tensors (request_tensors.cc).
  MaybeFault cut_bytes(std::string_view raw, std::size_t input);
  MaybeFault measure_rows();
  // Finds the task of each row of a model of several tasks, when all inputs are bound (request_tensors.cc).
  MaybeFault read_tasks(bool raw_given);
  [[nodiscard]] bool names_tasks(const Tensor& tensor) const;  // the names of the rows' tasks, in place of numbers
  void forget_task_parameter();
  // Reads `dimensions`, an ordinary parameter to models without vectors; the default is the model's.
  MaybeFault read_dimensions();
  [[nodiscard]] MaybeFault unknown_task(std::string_view name) const;
  MaybeFault count_field();
  MaybeFault count_parameter(std::string_view entry);

  std::string_view model_name_;
  std::string_view model_version_;
  std::string_view id_;
  std::int64_t timeout_us_ = 0;
  bool bulk_ = false;
  bool says_class_ = false;
  bool wants_final_response_ = false;
  CascadeWishes wishes_;
  FlowWishes flow_wishes_;
  std::string_view task_entry_;  // the parameter `task` as it came
  std::string_view task_name_;
  bool task_is_text_ = false;
  // The side to cut; kCut: as the model's tokenizer cuts.
  enum class Truncate : std::uint8_t { kUnsaid, kNone, kStart, kEnd, kCut } truncate_ = Truncate::kUnsaid;
  struct PromptParameter {
    std::string_view entry, text;  // as it came, and what it says
    bool is_text = true;
  };
  PromptParameter prompt_name_, input_type_;
  std::string_view dimensions_entry_;
  std::int64_t cut_to_ = 0;  // after bind()
  bool of_text_ = false;
  std::vector<std::string_view> forwarded_;  // parameter entries sent on as they came
  std::vector<Tensor> tensors_;
  std::vector<std::string_view> raw_;
  std::vector<std::string_view> output_names_;
  OutputSet outputs_ = kAllOutputs;  // after bind()
  std::size_t fields_ = 0;           // read so far, of all messages but typed contents
  std::size_t parameters_ = 0;       // of the message, its inputs and its outputs
  std::size_t parameter_bytes_ = 0;  // their entries
  std::size_t forwarded_size_ = 0;

  const ModelSpec* model_ = nullptr;
  std::int64_t rows_ = 0;
  std::int64_t width_ = 0;
  std::vector<std::string> decoded_;   // typed contents, made raw
  std::vector<std::string> prompted_;  // texts behind a prompt
  std::vector<std::int32_t> lengths_;
  std::vector<std::uint32_t> tasks_;
  std::vector<std::unique_ptr<const InferRequest>> others_;  // by wording
  std::vector<std::string_view> cells_;                      // [rows][inputs], little-endian; null data: to be made up
};

// Rows as one request to a worker: tensors of [rows, tokens]. The arguments must outlive it.
class WorkerRequest {
 public:
  struct Row {
    const InferRequest* request;  // bound
    std::size_t row;
    OutputSet outputs;                                   // that are asked for
    const std::vector<std::uint32_t>* tokens = nullptr;  // places of those that are sent, ascending; null: all
  };
  // At least one row; of several requests, all go_with() each other. `tokens`: not less than any row has.
  WorkerRequest(std::span<const Row> rows, const RuntimeInfo& runtime, std::int32_t tokens);

  [[nodiscard]] OutputSet outputs() const { return outputs_; }  // that any of them asks for
  // Its size, then its bytes, which must be written into that much memory.
  [[nodiscard]] std::size_t size() const;
  void write(char* out) const;

  // Tokens that rows of at most this length are sent with.
  static std::int32_t tokens(std::int32_t longest, const RuntimeInfo& runtime) {
    return runtime.dynamic ? longest : runtime.max_length;
  }

 private:
  [[nodiscard]] const InferRequest& first() const { return *rows_.front().request; }
  [[nodiscard]] std::string_view id() const;
  [[nodiscard]] std::size_t tensor_size(std::size_t input) const;
  void write_tensor(std::size_t input, char* out) const;

  std::span<const Row> rows_;
  const RuntimeInfo& runtime_;
  std::size_t tokens_;
  OutputSet outputs_ = 0;
};

}  // namespace arlo::gateway
