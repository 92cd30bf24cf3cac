#include "gateway/front/vllm_scores.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "gateway/front/logits.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

// What both have: texts, or pairs, whose scores are asked for.
class Scored : public ApiTask {
 public:
  Scored() : ApiTask(Dialect::kOpenAi) {}

 protected:
  MaybeFault read_common(const ApiBody& from, const json& body) {
    now_s_ = from.now_s;
    if (auto fault = read_text(body, "model", &model_)) return fault;
    bool activation = true;
    for (const char* name : {"use_activation", "activation"}) {
      if (auto fault = read_bool(body, name, &activation)) return fault;
    }
    raw_ = !activation;
    return read_wishes(body, from.auto_truncate, &wishes_);
  }

  // A text, or a list of such.
  static MaybeFault read_side(const json& from, const std::string& field, std::vector<std::string>* out) {
    return read_texts(from.is_string() ? json::array({from}) : from, field, true, out);
  }

  MaybeFault check(const ModelSpec& model, std::size_t rows, std::size_t most_rows,
                   inference::ModelInferRequest* out) const {
    if (auto fault = check_of_scores(model, wishes_)) return fault;
    if (auto fault = check_rows(rows, most_rows)) return fault;
    add_wishes(wishes_, true, out);
    return {};
  }

  [[nodiscard]] std::string head(const char* kind, const char* object, const inference::ModelInferResponse& answer,
                                 const ModelSpec& model) const {
    return "{\"id\":" + quoted_json(kind + std::string("-") + answer.id()) + ",\"object\":\"" + object +
           "\",\"created\":" + std::to_string(now_s_) + ",\"model\":" + quoted_json(model.name) + ",\"data\":[";
  }
  static std::string tail(const inference::ModelInferResponse& answer) {
    return "],\"usage\":" + usage_of(said(answer, "tokens")) + "}";
  }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  TextWishes wishes_;
  std::int64_t now_s_ = 0;
  bool raw_ = false;
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)
};

class Score final : public Scored {
 public:
  [[nodiscard]] std::optional<std::size_t> characters() const override {
    const std::size_t times = first_.size() == second_.size() ? 1 : second_.size();
    return count_characters_of(first_) * times + count_characters_of(second_);
  }
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return is_reranker(model); }

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    static constexpr const char* kNames[][2] = {{"queries", "documents"}, {"text_1", "text_2"}, {"data_1", "data_2"}};
    for (const auto& [first, second] : kNames) {
      if (!body.contains(first) || !body.contains(second)) continue;
      if (auto fault = read_side(body[first], first, &first_)) return fault;
      if (auto fault = read_side(body[second], second, &second_)) return fault;
      if (first_.size() != 1 && first_.size() != second_.size()) {
        return invalid(std::string(first) + " must be one text, or as many as " + second);
      }
      return read_common(from, body);
    }
    return invalid("queries and documents are missing, or text_1 and text_2");
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    if (auto fault = ask_score(model, out)) return fault;
    if (auto fault = check(model, second_.size(), most_rows, out)) return fault;
    const bool same = first_.size() != second_.size();  // one for each row
    auto fault = same ? add_texts(kText, first_.front(), std::vector<std::string>(second_.size()), out)
                      : add_texts(kText, {}, first_, out);
    return fault ? fault : add_texts(kTextPair, {}, second_, out);
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> scores;
    std::size_t each = 0;
    if (auto fault = read_rows(answer, second_.size(), &scores, &each)) return fault;
    if (each != 1) return Fault{Code::kInternal, "the worker's answer has more than one score of a pair"};
    auto& body = out->body;
    body = head("score", "list", answer, model);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      body += (i == 0 ? "{\"index\":" : ",{\"index\":") + std::to_string(i) + R"(,"object":"score","score":)";
      if (!raw_) activate(model.score_activation, &scores[i], 1);
      append_float(scores[i], &body);
      body += '}';
    }
    body += tail(answer);
    return {};
  }

 private:
  std::vector<std::string> first_;
  std::vector<std::string> second_;
};

class Classify final : public Scored {
 public:
  [[nodiscard]] std::optional<std::size_t> characters() const override { return count_characters_of(texts_); }
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return is_classifier(model); }

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    const auto input = body.find("input");
    if (input == body.end()) return invalid("input is missing");
    if (auto fault = read_side(*input, "input", &texts_)) return fault;
    if (auto fault = read_common(from, body)) return fault;
    if (auto fault = read_text(body, "task", &asked_)) return fault;
    infinity_ = from.infinity || body.contains("raw_scores");
    return read_bool(body, "raw_scores", &raw_);
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    if (auto fault = ask_labels(model, asked_, out)) return fault;
    if (auto fault = check(model, texts_.size(), most_rows, out)) return fault;
    return add_texts(kText, {}, texts_, out);
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> values;
    std::size_t each = 0;
    if (auto fault = read_rows(answer, texts_.size(), &values, &each)) return fault;
    const Labels labels = labels_of(model, asked_, each);
    auto& body = out->body;
    body = head("classify", infinity_ ? "classify" : "list", answer, model);
    for (std::size_t row = 0; row < texts_.size(); ++row) {
      float* scores = values.data() + row * each;
      if (!raw_) activate(model.label_activation, scores, labels.count);
      if (row != 0) body += ',';
      if (infinity_) {
        append_labels(labels, scores, &body);
        continue;
      }
      const auto best = ranks(scores, labels.count).front();
      body += "{\"index\":" + std::to_string(row) + ",\"label\":" + quoted_json(label_of(labels, best)) + ",\"probs\":";
      append_floats(scores, labels.count, &body);
      body += ",\"num_classes\":" + std::to_string(labels.count) + "}";
    }
    body += tail(answer);
    return {};
  }

 private:
  std::vector<std::string> texts_;
  std::string asked_;  // the task; empty: none is named
  bool infinity_ = false;
};

}  // namespace

std::unique_ptr<ApiTask> make_score() { return std::make_unique<Score>(); }
std::unique_ptr<ApiTask> make_classify() { return std::make_unique<Classify>(); }

}  // namespace arlo::gateway
