// A model and its runtimes as the data path reads them, from any description.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fault.h"

namespace arlo::gateway {

// Some of a model's outputs, by their place in ModelSpec::outputs.
using OutputSet = std::uint64_t;
inline constexpr OutputSet kAllOutputs = ~OutputSet{0};
inline constexpr int kMaxOutputs = 64;
inline constexpr std::size_t kMostDims = 7;  // of a tensor's row

enum class Role : std::uint8_t { kIds, kMask, kOther, kTensor };

struct InputSpec {
  std::string name;
  std::string datatype;  // INT64 or INT32; of a tensor any
  std::size_t item = 8;  // bytes of one element; 0: BYTES, of which a row has one
  Role role = Role::kOther;
  std::int64_t pad_value = 0;
  bool optional = false;
  std::vector<std::int64_t> dims;  // of a tensor: of a row

  // Of a tensor: the first of dims, -1, is the row's length, in steps.
  [[nodiscard]] bool ragged() const { return !dims.empty() && dims.front() < 0; }
  // Elements of a row that is sent with so many tokens, or steps.
  [[nodiscard]] std::size_t elements(std::size_t tokens) const {
    if (role != Role::kTensor) return tokens;
    std::size_t product = 1;
    for (const auto dim : dims) product *= dim < 0 ? tokens : static_cast<std::size_t>(dim);
    return product;
  }
  // Bytes of a tensor's row; where it is ragged, of a step.
  [[nodiscard]] std::size_t step() const { return item * elements(1); }
};

struct OutputSpec {
  std::string name;
  std::string datatype;
  std::size_t item = 0;  // bytes of one element; 0: BYTES, of varying size
  bool token_level = false;
  std::vector<std::int64_t> dims;
  bool on_request = false;   // only for requests that name it
  bool of_children = false;  // [children of all rows, dims...]
};

inline constexpr std::size_t kMostTasks = 1024;

// The function from logits to probabilities or scores; kUsual: softmax, for one label sigmoid.
enum class Activation : std::uint8_t { kUsual, kSoftmax, kSigmoid, kIdentity, kTanh };
// Finds it by name; empty: kUsual. False: there is none of that name.
bool read_activation(std::string_view name, Activation* out);
std::string_view activation_name(Activation activation);

// One of several tasks that share a model.
struct TaskSpec {
  std::string name;
  std::vector<std::string> labels;  // of its logits, the first ones of a row
};

struct Cascade;
struct FlowSpec;
struct TextSpec;

// The inputs that replace all others: texts, and the second texts of pairs.
inline constexpr std::string_view kText = "text";
inline constexpr std::string_view kTextPair = "text_pair";
// The input that gives the task of each row, and the parameter that gives that of all rows.
inline constexpr std::string_view kTask = "task";

struct ModelSpec {
  std::string name;
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  OutputSet usual = kAllOutputs;  // for a request that names none: all but those on request
  std::size_t ids = 0;            // index in inputs; where there are none, of the first tensor
  std::int64_t mask = -1;         // index in inputs, -1: the model has none
  std::int64_t vocabulary = 0;    // token ids are 0 to this - 1; where the manifest does not say, all of the datatype's
  std::int64_t slo_ns = 0;
  std::int64_t default_timeout_ns = 0;
  std::int32_t longest = 0;         // tokens, of the longest of its runtimes
  std::uint16_t variant = 0;        // as the scheduler knows it
  double share = 1;                 // of instances that also hold other models
  OutputSet inner = 0;              // for decisions: clients neither see nor name them
  int counts = -1;                  // output that says how many children each row has
  int task = -1;                    // input that says of which of `tasks` a row is; -1: there are no tasks
  std::vector<TaskSpec> tasks;      // by their numbers
  bool stage = false;               // it answers for a cascade or a pipeline, and clients do not see it
  std::vector<std::string> labels;  // names of a classifier's classes; empty: not known
  std::vector<std::pair<std::string, std::string>> prompts;  // what may go before a text, by name
  std::string default_prompt;        // name of the prompt of requests that name none; empty: no prompt
  std::int64_t dimensions = 0;       // as the manifest has them: see cut_to()
  Activation label_activation = {};  // of its logits: kUsual if the model does not say
  Activation score_activation = {};
  std::shared_ptr<const TextSpec> text;    // null: it came without a tokenizer
  std::shared_ptr<const Cascade> cascade;  // how it is answered by others; null: it answers itself
  std::shared_ptr<const FlowSpec> flow;    // the same, of a pipeline
  // Of a cascade: how rows are written for stages of other vocabularies: their inputs and tokenizer, and the same
  // outputs. Where there are any, requests are text.
  std::vector<std::shared_ptr<const ModelSpec>> wordings;

  [[nodiscard]] bool takes_text() const;
  [[nodiscard]] bool text_elsewhere() const;  // helpers make token ids of it, in one of its vocabularies at least
  // Rows are tensors of a fixed size, and no tokens.
  [[nodiscard]] bool of_tensors() const { return inputs[ids].role == Role::kTensor; }
  [[nodiscard]] int find_input(std::string_view name) const;   // -1: none
  [[nodiscard]] int find_output(std::string_view name) const;  // -1: none
  // The output that is a vector for each row, or for each token: the one named so, or the only one; -1: none.
  [[nodiscard]] int vector_output(bool of_tokens) const;
  // Numbers that the vectors of rows are cut to where a request does not say; 0: they are whole.
  [[nodiscard]] std::int64_t cut_to() const;
  [[nodiscard]] int find_task(std::string_view name) const;  // -1: none
  [[nodiscard]] std::string task_names() const;              // "a, b, c", for people
};

struct RuntimeInfo {
  std::string name;
  std::int32_t max_length = 0;
  std::int32_t max_batch = 1;
  bool dynamic = false;
  std::uint16_t variant = 0;  // of its model
};

// Size in bytes of one element of a KServe v2 datatype; 0 for BYTES, -1 for an unknown one.
int datatype_size(std::string_view datatype);

// The vocabulary of a model that does not say how large it is: all that the datatype of its ids can hold.
std::int64_t all_ids(const InputSpec& ids);

// The rows of a request's tensors: how long each is, and how it is padded for a runtime. Pure; no wire format.

// `count` elements of `item` bytes, all of this value.
void fill_items(char* out, std::size_t count, std::size_t item, std::int64_t value);

// A token id; a negative one is a very high one.
std::uint64_t read_id(const char* at, std::size_t item);

// Returns a fault if one of the first `length` ids of a row is not in the model's vocabulary.
MaybeFault check_ids(const ModelSpec& model, const char* row_ids, std::int64_t row, std::int64_t length);

// Lengths of the rows of [rows, width] tensors: the position after the last non-zero of the mask; without one (null),
// all of the width. A fault for a row that the model does not take: too long, empty, or with an id that it does not
// have.
MaybeFault find_lengths(const ModelSpec& model, const char* ids, const char* mask, std::int64_t rows,
                        std::int64_t width, std::vector<std::int32_t>& lengths);

// One row of an input as a runtime takes it: its elements, and padding up to `tokens`. `from` null: the client sent
// none, so all tokens count (a mask) or the elements are the pad value.
void write_row(const InputSpec& spec, const char* from, std::size_t length, std::size_t tokens, char* out);

// An element of a raw BYTES tensor: 4 bytes of size, little-endian, and its bytes. Returns false if it is cut short;
// otherwise it is removed from `left`.
bool take_element(std::string_view& left, std::string_view& out);
char* put_element(std::string_view element, char* out);  // returns the end
inline constexpr const char* kCutShort =
    " is cut short; each is its size in bytes as 4 bytes, little-endian, and its bytes";

}  // namespace arlo::gateway
