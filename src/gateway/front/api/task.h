// A request of the HTTP API that asks a model: reads its body, makes a ModelInferRequest, and writes the answer in the
// client's format. Each family of the API has its own kinds. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/fault.h"
#include "gateway/front/api/common.h"

namespace arlo::gateway {

// The gateway's version as server APIs report it.
inline constexpr const char* kServerVersion = "0.1.0";

struct ApiAnswer {
  std::string body;
  std::string_view type = "application/json";
  std::string headers = {};  // further headers, each with its line ending
};

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
  virtual MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) = 0;

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

}  // namespace arlo::gateway
