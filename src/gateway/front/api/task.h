// A request of the HTTP API that asks a model: reads its body, makes a ModelInferRequest, and writes the answer in the
// client's format. Each family of the API has its own kinds. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/fault.h"
#include "gateway/front/api/common.h"
#include "gateway/front/http/http_message.h"

namespace arlo::gateway {

// The gateway's version as server APIs report it.
inline constexpr const char* kServerVersion = "0.1.0";

// A body with its context.
struct ApiBody {
  std::string_view bytes;
  std::string_view json_size;         // Inference-Header-Content-Length
  std::string_view query_model = {};  // ?model=, if there is no body
  std::string_view path_model = {};   // named by the path, with its version
  std::string_view path_version = {};
  std::int64_t now_s = 0;            // since 1970, for answers with a creation time
  bool infinity = false;             // the client speaks infinity's API
  std::size_t most_rows = SIZE_MAX;  // limit per request
  bool auto_truncate = false;  // texts over the limit are truncated by default, where the body does not decide that
};

class Fields;

class ApiTask {
 public:
  explicit ApiTask(Dialect dialect) : dialect_(dialect) {}
  virtual ~ApiTask() = default;
  ApiTask(const ApiTask&) = delete;
  ApiTask& operator=(const ApiTask&) = delete;

  // Called once, first. INVALID_ARGUMENT: it names the field.
  virtual MaybeFault read(const ApiBody& from);
  // The format of the answer and faults; final after read().
  [[nodiscard]] Dialect dialect() const { return dialect_; }
  [[nodiscard]] const std::string& model() const { return model_; }  // empty: the only model
  [[nodiscard]] const std::string& version() const { return version_; }

  // Whether the model's outputs suit the request: if no model is named, the only one that fits is used.
  [[nodiscard]] virtual bool fits(const ModelSpec&) const { return true; }
  // The model name ends in the purpose of its texts (-query, -passage). False: that has no meaning here.
  virtual bool meant_for(std::string_view) { return false; }
  // False: only the model's tokenizer is needed, and write() follows at once, with an empty answer.
  [[nodiscard]] virtual bool calls() const { return true; }
  // INVALID_ARGUMENT, UNIMPLEMENTED: the model cannot do it, or not in this form; or there are more rows than
  // `most_rows`. UNAVAILABLE with a wanted job: call again with a new request once the job is done.
  virtual MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) = 0;
  // INTERNAL: the answer does not fit the request.
  virtual MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, HttpAnswer* out) = 0;

  // Characters of the texts without prompts, counting a text once per row; for token ids, their number. None: the
  // request has neither.
  [[nodiscard]] virtual std::optional<std::size_t> characters() const { return std::nullopt; }

  [[nodiscard]] virtual const std::shared_ptr<text::Job>& text_job() const { return job_; }

 protected:
  // Reads a JSON body.
  virtual MaybeFault read_fields(Fields&, const ApiBody&) { return {}; }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  Dialect dialect_;
  std::string model_;
  std::string version_;
  std::shared_ptr<text::Job> job_ = std::make_shared<text::Job>();
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)
};

// Every kind of request, by the names of routes.toml. Embeddings of texts and of tokens, and similarities of texts.
std::unique_ptr<ApiTask> make_openai_embeddings();
std::unique_ptr<ApiTask> make_cohere_embed_v1();
std::unique_ptr<ApiTask> make_cohere_embed_v2();
std::unique_ptr<ApiTask> make_tei_embed();
std::unique_ptr<ApiTask> make_tei_embed_all();
std::unique_ptr<ApiTask> make_tei_similarity();

// Labels of texts and pairs, their scores, and documents ranked for a query. Either: TEI's if it has `texts`, otherwise
// the shared form of Cohere, Jina and vLLM, which is the same in both versions.
std::unique_ptr<ApiTask> make_tei_predict();
std::unique_ptr<ApiTask> make_classify();
std::unique_ptr<ApiTask> make_score();
std::unique_ptr<ApiTask> make_either_rerank();
std::unique_ptr<ApiTask> make_rerank_v1();
std::unique_ptr<ApiTask> make_rerank_v2();

// Chosen by the model and the fields of the body; and several of these in one.
std::unique_ptr<ApiTask> make_tei_own();
std::unique_ptr<ApiTask> make_tei_vertex();

// Answered without a call to a worker.
std::unique_ptr<ApiTask> make_tei_tokenize();
std::unique_ptr<ApiTask> make_tei_decode();
std::unique_ptr<ApiTask> make_tei_info();
std::unique_ptr<ApiTask> make_tei_sparse();

// KServe's v2 protocol over HTTP, with Triton's binary tensors.
std::unique_ptr<ApiTask> make_kserve_infer();
inline constexpr std::string_view kJsonSize = "Inference-Header-Content-Length";
// Writes a message of the gRPC service in that protocol's JSON: the same fields, with 64-bit numbers as numbers.
std::string written(const google::protobuf::Message& message);

}  // namespace arlo::gateway
