// libFuzzer on what strangers send to the HTTP API: a head is read, a body that comes in chunks is put together, and
// what asks a model is read, made a ModelInferRequest and answered. Built by the preset `fuzz`.
//
// The input: a byte that says what is asked for, one with the model and what the worker answers, and the rest is an
// HTTP request. Its body is all that follows the head, unless it comes in chunks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/desk/trace.h"
#include "gateway/front/api/fields.h"
#include "gateway/front/api/task.h"
#include "gateway/front/http/http_message.h"
#include "http_api_models.h"

namespace {

using namespace arlo::gateway;  // NOLINT(google-build-using-namespace): a program of one file

constexpr std::size_t kMostRows = 32;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// However the bytes come, the same comes out.
ChunkedBody::State put_together(std::string_view bytes, std::size_t most, std::size_t step, std::string* body) {
  ChunkedBody chunks(most);
  std::string in;
  auto state = ChunkedBody::State::kMore;
  for (std::size_t at = 0; at < bytes.size() && state == ChunkedBody::State::kMore; at += step) {
    in += bytes.substr(at, step);
    std::size_t taken = 0;
    state = chunks.feed(in, &taken);
    require(taken <= in.size(), "more is taken than there is");
    in.erase(0, taken);
  }
  require(chunks.body().size() <= most, "a body is larger than it may be");
  *body = std::move(chunks.body());
  return state;
}

inference::ModelInferResponse answer_to(const inference::ModelInferRequest& request, std::size_t each) {
  inference::ModelInferResponse answer;
  const auto rows = request.inputs_size() == 0 || request.inputs(0).shape_size() == 0
                        ? std::int64_t{1}
                        : std::clamp<std::int64_t>(request.inputs(0).shape(0), 0, kMostRows);
  auto* output = answer.add_outputs();
  output->set_name("logits");
  output->set_datatype("FP32");
  output->add_shape(rows);
  const std::vector<float> values(static_cast<std::size_t>(rows) * each, 0.5F);
  answer.add_raw_output_contents(values.data(), values.size() * sizeof(float));
  return answer;
}

void ask(ApiTask& task, const ModelSpec& model, const ApiBody& body, std::size_t each) {
  std::string said;
  HttpAnswer made;
  inference::ModelInferRequest request;
  auto fault = task.read(body);
  if (!fault) fault = task.ask(model, kMostRows, &request);
  if (!fault && task.calls()) {
    require(request.ByteSizeLong() <= 3 * kMostMade, "a request is made far larger than it came");
    if (each == 0) {  // longer and shorter vectors than are asked for too
      for (const auto& input : request.inputs()) each = std::max<std::size_t>(each, input.shape_size() > 1 ? 64 : 0);
    }
  }
  if (!fault) fault = task.write(model, answer_to(request, each), &made);
  // A query counts in each of its rows.
  require(fault || task.characters().value_or(0) <= body.bytes.size() * (kMostRows + 1), "more characters than came");
  said = fault ? write_fault(task.dialect(), *fault, "id") : made.body;
  if (!fault && made.type != "application/json") return;
  require(nlohmann::json::accept(said), "an answer is no JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr std::unique_ptr<ApiTask> (*kTasks[])() = {
      make_openai_embeddings, make_tei_embed,    make_tei_embed_all, make_tei_similarity, make_tei_predict,
      make_tei_tokenize,      make_tei_decode,   make_tei_info,      make_either_rerank,  make_rerank_v1,
      make_rerank_v2,         make_kserve_infer, make_tei_own,       make_tei_vertex,     make_cohere_embed_v1,
      make_cohere_embed_v2,   make_score,        make_classify};
  static const auto models = http_api_models();

  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto head = read_request(bytes);
  if (!head) return 0;
  require(head->size <= bytes.size(), "a head is larger than what came");
  static_cast<void>(takes_gzip(head->header("accept-encoding")));
  if (const auto trace = read_traceparent(head->header("traceparent"))) {
    const auto again = read_traceparent(trace->text());
    require(again && again->text() == trace->text(), "a traceparent is another one when it is written");
  }
  std::string body(bytes.substr(head->size));
  if (head->chunked) {
    std::string other;
    const std::string all = std::move(body);
    const std::size_t most = (data[0] & 0x80) != 0 ? 64 : size;
    const auto state = put_together(all, most, all.size() + 1, &body);
    const auto same = put_together(all, most, 1 + data[0] % 7U, &other);
    // A line that is too long is wrong as soon as that is seen.
    require(state == same, "chunks mean another thing when they come in pieces");
    if (state != ChunkedBody::State::kDone) return 0;
    require(body == other, "a body is another one when it comes in pieces");
  }
  if (body.find('\0') == std::string::npos) {
    nlohmann::json read;
    const bool good = read_json(body, 64, &read) == JsonRead::kOk;
    require(!good || nlohmann::json::accept(body), "what is no JSON is read as such");
  }
  const auto task = kTasks[(data[0] & 0x7F) % std::size(kTasks)]();
  const ApiBody from{.bytes = body,
                     .json_size = head->header(kJsonSize),
                     .query_model = head->query,
                     .path_model = head->path,
                     .path_version = {}};
  ask(*task, *models[data[1] % models.size()], from, data[1] / models.size() % 4);
  return 0;
}
