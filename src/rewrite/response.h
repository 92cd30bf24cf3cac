// The workers' answers, cut into rows, and the rows of one request put together into the client's answer. Pure.
//
// Token-level outputs come back as [rows, tokens, dims...] and are cut to the row's length; rows of different lengths
// are filled with zeros to the longest row of the request, not to what they were padded to on the worker.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "base/wire.h"
#include "rewrite/model.h"
#include "rewrite/request.h"

namespace arlo::gateway {

// Returns a lower bound of the tensor bytes of a bound request's answer: the sizes that the model gives.
std::uint64_t known_answer_bytes(const ModelSpec& model, const InferRequest& request);

// The answer to one row: views into the body of the worker's answer, which must outlive it.
class RowResponse {
 public:
  // Returns the bytes of an output, by its place in ModelSpec::outputs; empty: there is none.
  [[nodiscard]] std::string_view raw(int spec) const;
  // Returns its elements per row, or per token for a token-level output; 0: there is none.
  [[nodiscard]] std::size_t elements(int spec) const;
  // Cuts out the elements of BYTES, without their sizes; for an output of children, or one that is cut along its first
  // dimension, each child's part. `children`: their number, which the output must hold.
  void cut(int spec, std::size_t children, std::vector<std::string_view>& out) const;
  // Children that an output has: those counted, or else its first dimension; -1: it has neither.
  [[nodiscard]] std::int64_t children(int spec) const;
  [[nodiscard]] RowResponse only(OutputSet outputs) const;
  // Replaces an output by one of other origin; `tail`: dims after the row.
  void set(int spec, std::vector<std::int64_t> tail, std::string_view raw);
  // Leaves the first `size` numbers of a row's vector, FP32.
  void cut_vector(int spec, std::int64_t size);

 private:
  friend class ResponsePlan;
  friend class WorkerResponse;
  struct Output {
    int spec = -1;
    std::vector<std::int64_t> tail;  // dims after rows (and tokens), or after children
    std::size_t token_bytes = 0;     // token-level: bytes of one token
    std::int64_t children = -1;      // of_children: so many of the row's
    bool varying = false;            // BYTES
    std::string_view raw;
  };
  [[nodiscard]] const Output* find(int spec) const;

  std::vector<Output> outputs_;  // in the order of ModelSpec::outputs
};

// A worker's answer to a WorkerRequest, parsed in place.
class WorkerResponse {
 public:
  // `outputs`, `rows`, `tokens`: those of the request. An answer that does not have the model's form is INTERNAL.
  MaybeFault parse(std::string_view body, const ModelSpec& model, OutputSet outputs, std::size_t rows,
                   std::int32_t tokens);
  // Returns a row with these outputs, which are among those that were parsed.
  [[nodiscard]] RowResponse row(std::size_t row, OutputSet outputs) const;

 private:
  struct Output {
    RowResponse::Output all;                // `raw`: of all rows
    std::vector<std::string_view> of_rows;  // of rows that have different sizes: BYTES and outputs of children
  };
  static MaybeFault parse_raw(const OutputSpec& spec, std::size_t rows, std::size_t tokens, Output* output);
  MaybeFault parse_counts(const ModelSpec& model);
  // Cuts an output of all children into parts by row.
  MaybeFault part_children(const OutputSpec& spec, Output* output) const;

  std::size_t rows_ = 0;
  std::vector<std::uint32_t> counts_;  // children of each row
  std::vector<Output> outputs_;        // in the order of ModelSpec::outputs
};

// The parameters of a response that describe its execution.
struct Timing {
  std::int64_t level = 0;       // the highest of the rows
  std::int64_t max_length = 0;  // of that level, tokens
  std::int64_t queue_us = 0;
  std::int64_t execute_us = 0;
  std::int64_t total_us = 0;
  std::int64_t computed_tokens = 0;  // padding included, of all rows
  std::int64_t demoted = 0;          // rows that ran above their ideal level
  std::int64_t batch_rows = 0;       // of the largest batch that one of the rows was in
  std::int64_t tokenize_us = 0;      // of text
  struct Stage {                     // of a cascade, the longest of the rows
    std::int64_t queue_us = 0;
    std::int64_t execute_us = 0;
  };
  std::vector<Stage> stages = {};    // of a cascade alone, up to the last that ran; and the rest too
  std::int64_t escalated = 0;        // rows that went on
  std::int64_t degraded = 0;         // rows answered by an earlier stage than the rules wanted
  std::int64_t pruned_tokens = 0;    // of all rows
  std::int64_t cascade_version = 0;  // of the deployment whose rules decided
  std::int64_t partial = -1;         // not the final answer: the present one of this row, which goes on
};

// A ModelInferResponse as its small fields and views of its tensors, which are copied once, by write().
class ResponsePlan {
 public:
  // Plans the answer of these rows; the bodies that they view must outlive the plan.
  MaybeFault build(const ModelSpec& model, const InferRequest& request, const std::vector<RowResponse>& rows,
                   const Timing& timing, bool streamed);

  // The steps of which build() consists, in this order.
  void begin(std::string_view model, std::string_view id);
  void parameter(std::string_view key, std::int64_t value) { add_parameter(key, 2, static_cast<std::uint64_t>(value)); }
  void flag(std::string_view key, bool value) { add_parameter(key, 1, value ? 1 : 0); }
  void parameters(const Timing& timing);  // those that every answer has
  void output(const OutputSpec& spec, std::span<const std::int64_t> shape);
  void add(std::string_view bytes, std::size_t zeros = 0);  // to the raw contents of the last output

  [[nodiscard]] std::size_t size() const;
  void write(char* out) const;

 private:
  struct Part {
    std::string_view bytes;
    std::size_t zeros;  // after them
  };
  struct Raw {
    std::size_t first;  // of its parts
    std::size_t bytes = 0;
  };
  wire::Writer more(std::size_t bytes);                                               // of text_
  void add_parameter(std::string_view key, std::uint32_t kind, std::uint64_t value);  // `kind`: a ParameterField

  std::string text_;
  std::vector<Part> parts_;
  std::vector<Raw> raws_;
};

}  // namespace arlo::gateway
