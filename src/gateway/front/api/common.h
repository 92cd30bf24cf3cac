// What the families of the HTTP API share: what a client may wish of any text, how a model is asked, and numbers and
// faults as they are written. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "kserve.h"
#include "rewrite/model.h"

namespace arlo::gateway {

// Whose words: they differ in the names of fields, the form of answers and that of errors.
enum class Dialect : std::uint8_t { kOpenAi, kTei, kCohere, kKserve };

// The body that says why there is no answer, and the status of it; with the request's id in the dialect that has it.
std::string write_fault(Dialect dialect, const Fault& fault, std::string_view id);
int status_of(Dialect dialect, const Fault& fault);

std::string dumped(const nlohmann::json& value);

// As TEI counts what a request computes on: of all the texts.
std::size_t count_characters_of(const std::vector<std::string>& texts);

// What a client may wish of the texts of a request.
struct TextWishes {
  // NONE, END or START: what is cut off; CUT: what the model's tokenizer cuts off; CHUNK: cut into pieces, of
  // embeddings. Empty before the body is read.
  std::string truncate;
  std::optional<std::string> prompt;  // name of the one that goes before each text; empty: none does
  std::string input_type;        // query, passage, ...: where no prompt is named, the one for this, or else the default
  std::optional<bool> bulk;      // of the class bulk, if the request says a class
  std::int64_t most_tokens = 0;  // of a text, below what the model takes; 0: that
  bool special = true;           // special tokens are added
  // Of pipelines.
  std::optional<double> utility, min_accuracy;
  std::string pin, tenant;
  [[nodiscard]] bool own_tokens() const { return most_tokens != 0 || !special; }
};
// INVALID_ARGUMENT: wishes that only embeddings can have.
MaybeFault check_of_scores(const ModelSpec& model, const TextWishes& wishes);
// `cut`: the request has texts, which may be cut and have a prompt before them; ids never do.
void add_wishes(const TextWishes& wishes, bool cut, inference::ModelInferRequest* out);
// Bytes of a tensor that is made of a body: a text that is repeated for each row, a prompt, and rows that are filled up
// to the widest can make it far larger than what a client sends.
inline constexpr std::size_t kMostMade = 64 << 20;
MaybeFault check_made(std::size_t bytes);
// The input `name` of BYTES [rows], each text behind `before`. INVALID_ARGUMENT: above kMostMade.
MaybeFault add_texts(std::string_view name, std::string_view before, const std::vector<std::string>& texts,
                     inference::ModelInferRequest* out);

// INVALID_ARGUMENT: more rows than are taken in one request.
MaybeFault check_rows(std::size_t rows, std::size_t most);

void append_float(float value, std::string* out);
void append_floats(const float* values, std::size_t count, std::string* out);
void append_base64(std::string_view bytes, std::string* out);
// [a,b,..], each part written by its number.
template <class Part>
void append_list(std::size_t count, std::string* out, Part part) {
  *out += '[';
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) *out += ',';
    part(i);
  }
  *out += ']';
}

// The FP32 values of the only output of an answer, `each` in a row.
struct Rows {
  std::vector<float> values;
  std::size_t each = 0;
  [[nodiscard]] std::size_t count() const { return values.size() / each; }
  float* operator[](std::size_t row) { return values.data() + row * each; }
};
// There are `rows` of the same size. INTERNAL: it is not so, or some are NaN or infinite. `pieces`: how many rows each
// input has; empty: one.
MaybeFault read_rows(const inference::ModelInferResponse& answer, std::size_t rows, Rows* out,
                     std::span<const std::size_t> pieces = {});
// INTERNAL, naming the inputs, where numbers of an output are NaN or infinite: `each` of a row. JSON has no word for
// them, and what ranks or stores them is wrong without knowing.
template <class T>
MaybeFault check_finite(std::span<const T> values, std::size_t each, std::span<const std::size_t> pieces = {});
// Parameter of an answer; 0 for none.
std::int64_t said(const inference::ModelInferResponse& answer, const char* name);
// {"prompt_tokens":n,"total_tokens":n}
std::string usage_of(std::int64_t tokens);

}  // namespace arlo::gateway
