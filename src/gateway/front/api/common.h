// Shared by the families of the HTTP API: a client's wishes for texts, the request to a model, and the format of
// numbers and faults. Pure.
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

// The API family, which decides field names and the form of answers and errors.
enum class Dialect : std::uint8_t { kOpenAi, kTei, kCohere, kKserve };

// The body and status of an error response, with the request's id if the dialect has one.
std::string write_fault(Dialect dialect, const Fault& fault, std::string_view id);
int status_of(Dialect dialect, const Fault& fault);

std::string dumped(const nlohmann::json& value);

// The characters of all the texts, as TEI counts its compute characters.
std::size_t count_characters_of(const std::vector<std::string>& texts);

// A client's wishes for the texts of a request.
struct TextWishes {
  // NONE, END or START: the side to truncate; CUT: the side of the model's tokenizer; CHUNK: cut into pieces, for
  // embeddings. Empty before the body is read.
  std::string truncate;
  std::optional<std::string> prompt;  // name of the prompt before each text; empty: none
  std::string input_type;        // query, passage, ...: without a named prompt, selects this one, or else the default
  std::optional<bool> bulk;      // bulk or not, if the request names a class
  std::int64_t most_tokens = 0;  // per text, below the model's limit; 0: the model's limit
  bool special = true;           // add special tokens
  // Pipelines only.
  std::optional<double> utility, min_accuracy;
  std::string pin, tenant;
  [[nodiscard]] bool own_tokens() const { return most_tokens != 0 || !special; }
};
// INVALID_ARGUMENT: wishes that are valid only for embeddings.
MaybeFault check_of_scores(const ModelSpec& model, const TextWishes& wishes);
// `cut`: the request has texts, which may be truncated and get a prompt; ids never are.
void add_wishes(const TextWishes& wishes, bool cut, inference::ModelInferRequest* out);
// Limit, in bytes, of a tensor made from a body: a text repeated for each row, a prompt, and rows padded to the widest
// can make it far larger than the client's body.
inline constexpr std::size_t kMostMade = 64 << 20;
MaybeFault check_made(std::size_t bytes);
// Adds the input `name` of BYTES [rows], each text prefixed by `before`. INVALID_ARGUMENT: above kMostMade.
MaybeFault add_texts(std::string_view name, std::string_view before, const std::vector<std::string>& texts,
                     inference::ModelInferRequest* out);

// INVALID_ARGUMENT: more rows than allowed in one request.
MaybeFault check_rows(std::size_t rows, std::size_t most);

void append_float(float value, std::string* out);
void append_floats(const float* values, std::size_t count, std::string* out);
void append_base64(std::string_view bytes, std::string* out);
// Writes [a,b,..]; `part` writes each element by its index.
template <class Part>
void append_list(std::size_t count, std::string* out, Part part) {
  *out += '[';
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) *out += ',';
    part(i);
  }
  *out += ']';
}

// The FP32 values of an answer's only output, `each` per row.
struct Rows {
  std::vector<float> values;
  std::size_t each = 0;
  [[nodiscard]] std::size_t count() const { return values.size() / each; }
  float* operator[](std::size_t row) { return values.data() + row * each; }
};
// Reads `rows` rows of equal size. INTERNAL: the output has another shape, or some values are NaN or infinite.
// `pieces`: rows per input; empty: one.
MaybeFault read_rows(const inference::ModelInferResponse& answer, std::size_t rows, Rows* out,
                     std::span<const std::size_t> pieces = {});
// INTERNAL, naming the inputs, if an output has NaN or infinite numbers, `each` per row. JSON cannot express them, and
// they would silently corrupt rankings and stores.
template <class T>
MaybeFault check_finite(std::span<const T> values, std::size_t each, std::span<const std::size_t> pieces = {});
// A parameter of an answer; 0 if missing.
std::int64_t said(const inference::ModelInferResponse& answer, const char* name);
// {"prompt_tokens":n,"total_tokens":n}
std::string usage_of(std::int64_t tokens);

// Rows of token ids made before the model is called, if the caller must know them: one row per text, or several for a
// long one.
using TokenRows = std::vector<std::vector<std::int64_t>>;

// INVALID_ARGUMENT: the model takes no text; the message says why.
MaybeFault check_text(const ModelSpec& model);

// Tokenises texts, each prefixed by `prompt`; see encode_texts().
MaybeFault encode_behind(const TextSpec& spec, std::string_view prompt, const std::vector<std::string>& texts,
                         const text::Limits& limits, text::Job* job, std::vector<text::Encoding>* out);

// Adds special tokens and truncates by `wishes`. INVALID_ARGUMENT: the model takes no text, or one is too long.
MaybeFault tokenize(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                    const TextWishes& wishes, text::Job* job, TokenRows* out);

// Splits each text into as many rows as needed: windows of the model's length or that of `wishes`, each repeating the
// last eighth of the previous one. `pieces`: rows per text. INVALID_ARGUMENT: above `most_rows`.
MaybeFault tokenize_whole(const ModelSpec& model, std::string_view prompt, const std::vector<std::string>& texts,
                          const TextWishes& wishes, std::size_t most_rows, text::Job* job, TokenRows* out,
                          std::vector<std::size_t>* pieces);

// Adds the tensors of ids and mask. INVALID_ARGUMENT: a row has more tokens than the model takes (all are padded to the
// widest, so a few bytes could request very many), or an id is unknown to it.
MaybeFault add_ids(const ModelSpec& model, const TokenRows& rows, inference::ModelInferRequest* out);

}  // namespace arlo::gateway
