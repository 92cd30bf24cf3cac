// Requests for embeddings as OpenAI and TEI write them in JSON, and their answers. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fault.h"
#include "rewrite/model.h"

namespace arlo::gateway {

// Whose words: they differ in the names of fields, the form of answers and that of errors.
enum class Dialect : std::uint8_t { kOpenAi, kTei };

struct EmbeddingsRequest {
  Dialect dialect = Dialect::kOpenAi;
  std::string model;  // empty: the only one
  std::vector<std::string> texts;
  std::vector<std::vector<std::int64_t>> ids;  // in place of texts, with their special tokens
  std::string truncate = "NONE";               // NONE, START, END
  bool base64 = false;                         // little-endian FP32
  bool normalize = true;
  std::size_t dimensions = 0;  // 0: all that the model has
};

// From the body of a POST. INVALID_ARGUMENT: it names the field.
MaybeFault read_embeddings(Dialect dialect, std::string_view json, EmbeddingsRequest* out);

// The ModelInferRequest for it. INVALID_ARGUMENT: the model embeds nothing, or not so; or there are more than
// `max_rows`, or one has more tokens than the model takes: all are as wide as the widest, so that few bytes could ask
// for very many.
MaybeFault infer_request(const EmbeddingsRequest& request, const ModelSpec& model, std::size_t max_rows,
                         std::string* out);

// The answer's body, of a ModelInferResponse. INTERNAL: it is not what was asked for.
MaybeFault write_embeddings(const EmbeddingsRequest& request, const ModelSpec& model, const std::string& response,
                            std::string* out);

// The body that says why there is none, and the status of it.
std::string write_fault(Dialect dialect, const Fault& fault);
int status_of(Dialect dialect, Code code);

}  // namespace arlo::gateway
