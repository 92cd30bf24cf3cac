// A request of the HTTP API that asks a model: read from its body, made a ModelInferRequest, and its answer written in
// the client's words. Each family of the API has its own kinds. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/fault.h"
#include "gateway/front/api/common.h"

namespace arlo::gateway {

// Of the gateway, as servers' APIs say it.
inline constexpr const char* kServerVersion = "0.1.0";

struct ApiAnswer {
  std::string body;
  std::string_view type = "application/json";
  std::string headers = {};  // further ones, each with its end of line
};

// What a body comes with.
struct ApiBody {
  std::string_view bytes;
  std::string_view json_size;         // Inference-Header-Content-Length
  std::string_view query_model = {};  // ?model=, where there is no body
  std::string_view path_model = {};   // that the path names, and its version
  std::string_view path_version = {};
  std::int64_t now_s = 0;            // since 1970, for answers that say when they were made
  bool infinity = false;             // the client speaks infinity's API
  std::size_t most_rows = SIZE_MAX;  // that are taken in one request
  bool auto_truncate = false;  // texts that are too long are cut, where the body does not say what becomes of them
};

class Fields;

class ApiTask {
 public:
  explicit ApiTask(Dialect dialect) : dialect_(dialect) {}
  virtual ~ApiTask() = default;
  ApiTask(const ApiTask&) = delete;
  ApiTask& operator=(const ApiTask&) = delete;

  // Once, first. INVALID_ARGUMENT: it names the field.
  virtual MaybeFault read(const ApiBody& from);
  // Whose words the answer and faults are in; final once it is read.
  [[nodiscard]] Dialect dialect() const { return dialect_; }
  [[nodiscard]] const std::string& model() const { return model_; }  // empty: the only one
  [[nodiscard]] const std::string& version() const { return version_; }

  // The model can do it, as far as its outputs tell: where none is named, the only one that fits is meant.
  [[nodiscard]] virtual bool fits(const ModelSpec&) const { return true; }
  // The model was named with what its texts are for (-query, -passage behind its name). False: that means nothing here.
  virtual bool meant_for(std::string_view) { return false; }
  // False: the model's tokenizer is all that it takes, and write() comes at once, with an empty answer.
  [[nodiscard]] virtual bool calls() const { return true; }
  // INVALID_ARGUMENT, UNIMPLEMENTED: the model cannot do it, or not so; or there are more rows than `most_rows`.
  // UNAVAILABLE, and the job is wanted: to be asked again, with a new request, when it is done.
  virtual MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) = 0;
  // INTERNAL: the answer is not what was asked for.
  virtual MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) = 0;

  // Of the texts, without prompts, a text that stands in several rows being counted in each; of token ids how many they
  // are. None: the request has neither.
  [[nodiscard]] virtual std::optional<std::size_t> characters() const { return std::nullopt; }

  [[nodiscard]] virtual const std::shared_ptr<text::Job>& text_job() const { return job_; }

 protected:
  // Of a body that is JSON.
  virtual MaybeFault read_fields(Fields&, const ApiBody&) { return {}; }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  Dialect dialect_;
  std::string model_;
  std::string version_;
  std::shared_ptr<text::Job> job_ = std::make_shared<text::Job>();
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)
};

}  // namespace arlo::gateway
