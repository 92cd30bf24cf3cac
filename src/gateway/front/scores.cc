#include "gateway/front/scores.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "gateway/front/logits.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

class TeiPredict final : public ApiTask {
 public:
  TeiPredict() : ApiTask(Dialect::kTei) {}
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return is_classifier(model); }
  [[nodiscard]] std::optional<std::size_t> characters() const override {
    return count_characters_of(first_) + count_characters_of(second_);
  }

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    const auto inputs = body.find("inputs");
    if (inputs == body.end()) return invalid("inputs is missing");
    if (inputs->is_array() && inputs->empty()) return nothing_in("inputs is empty");
    if (inputs->is_array() && inputs->front().is_array()) {
      batch_ = true;
      for (const auto& row : *inputs) {
        if (auto fault = read_row(row)) return fault;
      }
    } else if (auto fault = read_row(*inputs)) {
      return fault;
    }
    if (!second_.empty() && second_.size() != first_.size()) {
      return invalid("inputs: texts and pairs of texts go in requests of their own");
    }
    if (auto fault = read_text(body, "model", &model_)) return fault;
    if (auto fault = read_text(body, "task", &asked_)) return fault;
    if (auto fault = read_bool(body, "raw_scores", &raw_)) return fault;
    return read_wishes(body, from.auto_truncate, &wishes_);
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    if (auto fault = ask_labels(model, asked_, out)) return fault;
    if (auto fault = check_of_scores(model, wishes_)) return fault;
    if (auto fault = check_rows(first_.size(), most_rows)) return fault;
    add_wishes(wishes_, true, out);
    if (auto fault = add_texts(kText, {}, first_, out)) return fault;
    return second_.empty() ? MaybeFault() : add_texts(kTextPair, {}, second_, out);
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> values;
    std::size_t each = 0;
    if (auto fault = read_rows(answer, first_.size(), &values, &each)) return fault;
    const Labels labels = labels_of(model, asked_, each);
    auto& body = out->body;
    if (batch_) body = "[";
    for (std::size_t row = 0; row < first_.size(); ++row) {
      float* scores = values.data() + row * each;
      if (!raw_) activate(model.label_activation, scores, labels.count);
      if (row != 0) body += ',';
      append_labels(labels, scores, &body);
    }
    if (batch_) body += ']';
    return {};
  }

 private:
  MaybeFault read_row(const json& row) {
    std::vector<std::string> texts;
    if (row.is_string()) {
      if (auto fault = read_texts(json::array({row}), "inputs", true, &texts)) return fault;
    } else if (row.is_array()) {
      if (auto fault = read_texts(row, "inputs", true, &texts)) return fault;
    }
    if (texts.empty() || texts.size() > 2) return invalid("inputs must be a text, a pair of texts, or a list of such");
    first_.push_back(std::move(texts[0]));
    if (texts.size() == 2) second_.push_back(std::move(texts[1]));
    return {};
  }

  std::vector<std::string> first_;
  std::vector<std::string> second_;
  std::string asked_;  // the task; empty: none is named
  TextWishes wishes_;
  bool batch_ = false;
  bool raw_ = false;
};

class Rerank final : public ApiTask {
 public:
  // `version`: of Cohere's; 0: TEI's, if the body is one.
  explicit Rerank(int version) : ApiTask(Dialect::kCohere), api_(version) {}
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return is_reranker(model); }
  [[nodiscard]] std::optional<std::size_t> characters() const override {
    return count_characters(query_) * documents_.size() + count_characters_of(documents_);
  }

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    const bool tei = api_ == 0 && body.contains("texts");
    if (tei) dialect_ = Dialect::kTei;
    if (auto fault = read_text(body, "query", &query_)) return fault;
    if (query_.empty()) return invalid("query is missing, or empty");
    const char* field = tei ? "texts" : "documents";
    const auto documents = body.find(field);
    if (documents == body.end()) return invalid(std::string(field) + " is missing");
    if (auto fault = read_bool(body, tei ? "return_text" : "return_documents", &again_)) return fault;
    const auto fields = body.find("rank_fields");
    if (fields != body.end() && !fields->is_null() && !fields->empty()) {
      if (auto fault = read_texts(*fields, "rank_fields", false, &fields_)) return fault;
      if (std::set(fields_.begin(), fields_.end()).size() != fields_.size() || fields_.size() > kMostFields) {
        return invalid("rank_fields must be at most " + std::to_string(kMostFields) + " names, each once");
      }
    }
    if (auto fault = read_documents(*documents, field)) return fault;
    if (auto fault = read_text(body, "model", &model_)) return fault;
    infinity_ = api_ == 0 && !tei && (from.infinity || body.contains("raw_scores"));
    now_s_ = from.now_s;
    if (auto fault = read_bool(body, "raw_scores", &raw_)) return fault;
    if (auto fault = read_count(body, "top_n", 0, &top_)) return fault;
    bool activation = true;  // vLLM's word for it
    if (auto fault = read_bool(body, "use_activation", &activation)) return fault;
    raw_ = raw_ || !activation;
    if (!tei) wishes_.truncate = "CUT";  // as they do: what a document has too much is left out
    if (auto fault = read_bool(body, "truncation", &cut_)) return fault;
    if (!cut_) wishes_.truncate = "NONE";
    return read_wishes(body, from.auto_truncate, &wishes_);
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    if (auto fault = ask_score(model, out)) return fault;
    if (auto fault = check_of_scores(model, wishes_)) return fault;
    if (auto fault = check_rows(documents_.size(), most_rows)) return fault;
    add_wishes(wishes_, true, out);
    // The query is the same one in each row.
    if (auto fault = add_texts(kText, query_, std::vector<std::string>(documents_.size()), out)) return fault;
    return add_texts(kTextPair, {}, documents_, out);
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> scores;
    std::size_t each = 0;
    if (auto fault = read_rows(answer, documents_.size(), &scores, &each)) return fault;
    if (each != 1) return Fault{Code::kInternal, "the worker's answer has more than one score of a pair"};
    auto order = ranks(scores.data(), scores.size());
    if (top_ > 0 && static_cast<std::size_t>(top_) < order.size()) order.resize(static_cast<std::size_t>(top_));
    const bool tei = dialect_ == Dialect::kTei;
    auto& body = out->body;
    body = tei ? "["
               : "{\"id\":" + dumped("rerank-" + std::string(answer.id())) + ",\"model\":" + dumped(model.name) +
                     ",\"results\":[";
    bool first = true;
    for (const std::size_t i : order) {
      body += std::exchange(first, false) ? "{\"index\":" : ",{\"index\":";
      body += std::to_string(i) + (tei ? ",\"score\":" : ",\"relevance_score\":");
      if (!raw_) activate(model.score_activation, &scores[i], 1);
      append_float(scores[i], &body);
      if (again_) {
        body += tei ? ",\"text\":" : ",\"document\":";
        body += tei || infinity_ ? quoted_json(documents_[i]) : shown_[i];
      }
      body += '}';
    }
    if (tei) {
      body += ']';
      return {};
    }
    const auto tokens = said(answer, "tokens");
    body += "],\"usage\":" + usage_of(tokens);
    if (infinity_) {
      body += R"(,"object":"rerank","created":)" + std::to_string(now_s_) + "}";
      return {};
    }
    body += std::string(R"(,"meta":{"api_version":{"version":")") + (api_ == 2 ? "2" : "1") +
            R"("},"billed_units":{"search_units":1},"tokens":{"input_tokens":)" + std::to_string(tokens) + "}}}";
    return {};
  }

 private:
  // Texts; of Cohere's and Jina's also objects: their field `text`, or those of `rank_fields` as lines of YAML.
  MaybeFault read_documents(const json& from, const std::string& field) {
    if (!from.is_array() || field == "texts") return read_texts(from, field, true, &documents_);
    auto texts = json::array();
    for (const auto& document : from) {
      json text = document;
      if (document.is_object()) {
        if (auto fault = read_fields(document, &text)) return fault;
      }
      if (again_) {
        json shown = document.is_object() ? document : json::object();
        if (!shown.contains("text")) shown["text"] = text;
        shown_.push_back(dumped(shown));
      }
      texts.push_back(std::move(text));
    }
    return read_texts(texts, field, true, &documents_);
  }

  MaybeFault read_fields(const json& document, json* out) const {
    if (fields_.empty() && document.contains("text")) {
      *out = document["text"];
      return {};
    }
    std::string lines;
    for (const auto& name : fields_) {
      const auto found = document.find(name);
      if (found == document.end() || found->is_null()) continue;
      lines += (lines.empty() ? "" : "\n") + name + ": ";
      lines += found->is_string() ? found->get<std::string>() : dumped(*found);
    }
    if (lines.empty()) {
      return invalid(
          "documents: an object has none of the fields of rank_fields, or no text where those are not named");
    }
    *out = std::move(lines);
    return {};
  }

  static constexpr std::size_t kMostFields = 64;

  const int api_;
  std::string query_;
  std::vector<std::string> documents_;
  std::vector<std::string> shown_;   // the documents as they come back, in JSON
  std::vector<std::string> fields_;  // of documents that are objects
  TextWishes wishes_;
  std::int64_t top_ = 0;  // 0: all
  bool raw_ = false;
  bool again_ = false;  // the documents come back
  bool cut_ = true;
  bool infinity_ = false;  // in infinity's form
  std::int64_t now_s_ = 0;
};

}  // namespace

std::unique_ptr<ApiTask> make_tei_predict() { return std::make_unique<TeiPredict>(); }
std::unique_ptr<ApiTask> make_either_rerank() { return std::make_unique<Rerank>(0); }
std::unique_ptr<ApiTask> make_rerank_v1() { return std::make_unique<Rerank>(1); }
std::unique_ptr<ApiTask> make_rerank_v2() { return std::make_unique<Rerank>(2); }

}  // namespace arlo::gateway
