// Labels of texts and pairs (TEI, vLLM, infinity), scores of pairs (vLLM), and documents ranked for a query (TEI,
// Cohere, Jina, vLLM, infinity).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "base/utf8.h"
#include "gateway/front/api/fields.h"
#include "gateway/front/api/task.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

// The output with a score per label; null: the model has none.
const OutputSpec* logits_of(const ModelSpec& model) {
  const int found = model.find_output("logits");
  if (found < 0 || (model.inner >> found & 1) != 0) return nullptr;
  const auto& output = model.outputs[static_cast<std::size_t>(found)];
  return output.token_level || output.datatype != "FP32" || output.dims.size() != 1 ? nullptr : &output;
}

// The label names, and their number of logits in a row; for a model of several tasks, those of one task.
struct Labels {
  const std::vector<std::string>* names;
  std::size_t count;

  [[nodiscard]] std::string operator[](std::size_t label) const {
    return label < names->size() ? (*names)[label] : "LABEL_" + std::to_string(label);
  }
};

Labels labels_of(const ModelSpec& model, const std::string& task, std::size_t logits) {
  const int of = model.find_task(task);
  if (of < 0) return {&model.labels, logits};
  const auto& names = model.tasks[static_cast<std::size_t>(of)].labels;
  return {&names, names.empty() ? logits : std::min(names.size(), logits)};
}

void softmax(float* values, std::size_t count) {
  const float most = *std::max_element(values, values + count);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(double{values[i]} - most);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(std::exp(double{values[i]} - most) / sum);
}

// Applies the model's activation to the logits of a row, in place.
void activate(Activation by, float* values, std::size_t count) {
  if (by == Activation::kUsual) by = count == 1 ? Activation::kSigmoid : Activation::kSoftmax;
  if (by == Activation::kSoftmax) return softmax(values, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (by == Activation::kSigmoid) values[i] = static_cast<float>(1 / (1 + std::exp(-double{values[i]})));
    if (by == Activation::kTanh) values[i] = std::tanh(values[i]);
  }
}

// Indexes in descending order of value; the earlier of equal values comes first.
std::vector<std::size_t> ranks(const float* values, std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

// Writes [{"score":s,"label":l},..] in descending order.
void append_labels(const Labels& labels, const float* scores, std::string* out) {
  const auto order = ranks(scores, labels.count);
  append_list(order.size(), out, [&](std::size_t i) {
    *out += "{\"score\":";
    append_float(scores[order[i]], out);
    *out += ",\"label\":" + dumped(labels[order[i]]) + "}";
  });
}

// A row is a text or a pair: `first_` has one text per row, or one for all.
class Scored : public ApiTask {
 public:
  // `labels`: for a classifier; otherwise for a reranker's single score.
  Scored(Dialect dialect, bool labels) : ApiTask(dialect), labels_(labels) {}

  [[nodiscard]] bool fits(const ModelSpec& model) const final {
    const auto* logits = logits_of(model);
    return logits != nullptr && (logits->dims[0] != 1) == labels_;
  }
  [[nodiscard]] std::optional<std::size_t> characters() const final {
    return count_characters_of(first_) * (one_for_all() ? rows() : 1) + count_characters_of(second_);
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) final {
    if (auto fault = ask_logits(model, out)) return fault;
    if (auto fault = check_of_scores(model, wishes_)) return fault;
    if (auto fault = check_rows(rows(), most_rows)) return fault;
    add_wishes(wishes_, true, out);
    auto fault = one_for_all() ? add_texts(kText, first_.front(), std::vector<std::string>(rows()), out)
                               : add_texts(kText, {}, first_, out);
    return fault || second_.empty() ? fault : add_texts(kTextPair, {}, second_, out);
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, HttpAnswer* out) final {
    Rows made;
    if (auto fault = read_rows(answer, rows(), &made)) return fault;
    if (!labels_ && made.each != 1) {
      return Fault{Code::kInternal, "the worker's answer has more than one score of a pair"};
    }
    write_scores(model, answer, &made, &out->body);
    return {};
  }

 protected:
  virtual void write_scores(const ModelSpec& model, const inference::ModelInferResponse& answer, Rows* made,
                            std::string* out) = 0;

  [[nodiscard]] std::size_t rows() const { return std::max(first_.size(), second_.size()); }
  void activate_score(const ModelSpec& model, float* score) const {
    if (!raw_) activate(model.score_activation, score, 1);
  }
  [[nodiscard]] Labels activate_labels(const ModelSpec& model, Rows* made) const {
    const Labels labels = labels_of(model, task_, made->each);
    for (std::size_t row = 0; !raw_ && row < rows(); ++row) {
      activate(model.label_activation, (*made)[row], labels.count);
    }
    return labels;
  }

  // The envelope of vLLM's and infinity's answers around a list.
  [[nodiscard]] std::string head(const char* kind, const char* object, const inference::ModelInferResponse& answer,
                                 const ModelSpec& model) const {
    return "{\"id\":" + dumped(kind + std::string("-") + answer.id()) + ",\"object\":\"" + object +
           "\",\"created\":" + std::to_string(now_s_) + ",\"model\":" + dumped(model.name) + ",\"data\":";
  }
  static std::string tail(const inference::ModelInferResponse& answer) {
    return ",\"usage\":" + usage_of(said(answer, "tokens")) + "}";
  }

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  std::vector<std::string> first_, second_;
  std::string task_;  // for a model of several tasks; empty: none is named
  TextWishes wishes_;
  std::int64_t now_s_ = 0;
  bool raw_ = false;
  bool infinity_ = false;  // in infinity's format
                           // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  [[nodiscard]] bool one_for_all() const { return first_.size() == 1 && rows() != 1; }

  // UNIMPLEMENTED: the model has no labels, or not the one score.
  MaybeFault ask_logits(const ModelSpec& model, inference::ModelInferRequest* out) const {
    const auto* logits = logits_of(model);
    if (logits == nullptr || (!labels_ && logits->dims[0] != 1)) {
      return Fault{Code::kUnimplemented,
                   "model '" + model.name + "' is no " + (labels_ ? "classifier" : "reranker") + ": it has " +
                       (logits == nullptr ? "no output logits of labels"
                                          : std::to_string(logits->dims[0]) + " labels, and one is needed")};
    }
    out->set_model_name(model.name);
    out->add_outputs()->set_name(logits->name);
    if (!model.tasks.empty() && !task_.empty()) (*out->mutable_parameters())["task"].set_string_param(task_);
    return {};
  }

  const bool labels_;
};

class TeiPredict final : public Scored {
 public:
  TeiPredict() : Scored(Dialect::kTei, true) {}

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    const json* inputs = in.needed("inputs");
    if (inputs == nullptr) return in.fault();
    if (inputs->is_array() && inputs->empty()) return nothing_in("inputs is empty");
    batch_ = inputs->is_array() && inputs->front().is_array();
    if (!batch_) {
      if (auto fault = read_row(*inputs)) return fault;
    }
    for (std::size_t i = 0; batch_ && i < inputs->size(); ++i) {
      if (auto fault = read_row((*inputs)[i])) return fault;
    }
    if (!second_.empty() && second_.size() != first_.size()) {
      return invalid("inputs: texts and pairs of texts go in requests of their own");
    }
    in.text("model", &model_).text("task", &task_).flag("raw_scores", &raw_).wishes(from.auto_truncate, &wishes_);
    return in.fault();
  }

  MaybeFault read_row(const json& row) {
    std::vector<std::string> texts;
    if (row.is_string()) texts.push_back(row.get<std::string>());
    if (row.is_array()) {
      if (auto fault = read_texts(row, "inputs", true, &texts)) return fault;
    }
    if (texts.empty() || texts.size() > 2) return invalid("inputs must be a text, a pair of texts, or a list of such");
    first_.push_back(std::move(texts[0]));
    if (texts.size() == 2) second_.push_back(std::move(texts[1]));
    return {};
  }

  void write_scores(const ModelSpec& model, const inference::ModelInferResponse&, Rows* made,
                    std::string* out) override {
    const Labels labels = activate_labels(model, made);
    if (!batch_) return append_labels(labels, (*made)[0], out);
    append_list(rows(), out, [&](std::size_t row) { append_labels(labels, (*made)[row], out); });
  }

  bool batch_ = false;
};

class Classify final : public Scored {
 public:
  Classify() : Scored(Dialect::kOpenAi, true) {}

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    now_s_ = from.now_s;
    infinity_ = from.infinity || in.has("raw_scores");
    bool activation = true;
    in.texts("input", &first_).text("model", &model_).flag("use_activation", &activation);
    in.flag("activation", &activation).wishes(from.auto_truncate, &wishes_).text("task", &task_);
    raw_ = !activation;
    return in.flag("raw_scores", &raw_).fault();
  }

  void write_scores(const ModelSpec& model, const inference::ModelInferResponse& answer, Rows* made,
                    std::string* out) override {
    const Labels labels = activate_labels(model, made);
    *out = head("classify", infinity_ ? "classify" : "list", answer, model);
    append_list(rows(), out, [&](std::size_t row) {
      const float* scores = (*made)[row];
      if (infinity_) return append_labels(labels, scores, out);
      const auto best = ranks(scores, labels.count).front();
      *out += "{\"index\":" + std::to_string(row) + ",\"label\":" + dumped(labels[best]) + ",\"probs\":";
      append_floats(scores, labels.count, out);
      *out += ",\"num_classes\":" + std::to_string(labels.count) + "}";
    });
    *out += tail(answer);
  }
};

class Score final : public Scored {
 public:
  Score() : Scored(Dialect::kOpenAi, false) {}

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    static constexpr const char* kNames[][2] = {{"queries", "documents"}, {"text_1", "text_2"}, {"data_1", "data_2"}};
    const auto* const names =
        std::ranges::find_if(kNames, [&](auto& pair) { return in.has(pair[0]) && in.has(pair[1]); });
    if (names == std::end(kNames)) return invalid("queries and documents are missing, or text_1 and text_2");
    const auto& [first, second] = *names;
    if (in.texts(first, &first_).texts(second, &second_).fault()) return in.fault();
    if (first_.size() != 1 && first_.size() != second_.size()) {
      return invalid(std::string(first) + " must be one text, or as many as " + second);
    }
    now_s_ = from.now_s;
    bool activation = true;
    in.text("model", &model_).flag("use_activation", &activation).flag("activation", &activation);
    raw_ = !activation;
    return in.wishes(from.auto_truncate, &wishes_).fault();
  }

  void write_scores(const ModelSpec& model, const inference::ModelInferResponse& answer, Rows* made,
                    std::string* out) override {
    *out = head("score", "list", answer, model);
    append_list(rows(), out, [&](std::size_t row) {
      *out += "{\"index\":" + std::to_string(row) + R"(,"object":"score","score":)";
      activate_score(model, (*made)[row]);
      append_float(made->values[row], out);
      *out += '}';
    });
    *out += tail(answer);
  }
};

class Rerank final : public Scored {
 public:
  // `version`: Cohere's; 0: TEI's, if the body is TEI's.
  explicit Rerank(int version) : Scored(Dialect::kCohere, false), api_(version) {}

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    const bool tei = api_ == 0 && in.has("texts");
    if (tei) dialect_ = Dialect::kTei;
    auto& query = first_.emplace_back();
    if (in.text("query", &query).fault()) return in.fault();
    if (query.empty()) return invalid("query is missing, or empty");
    const char* const field = tei ? "texts" : "documents";
    const json* documents = in.needed(field);
    if (in.flag(tei ? "return_text" : "return_documents", &again_).fault()) return in.fault();
    if (const json* fields = in.given("rank_fields"); fields != nullptr && !fields->empty()) {
      if (auto fault = read_texts(*fields, "rank_fields", false, &fields_)) return fault;
      if (std::set(fields_.begin(), fields_.end()).size() != fields_.size() || fields_.size() > kMostFields) {
        return invalid("rank_fields must be at most " + std::to_string(kMostFields) + " names, each once");
      }
    }
    if (auto fault = read_documents(*documents, field)) return fault;
    infinity_ = api_ == 0 && !tei && (from.infinity || in.has("raw_scores"));
    now_s_ = from.now_s;
    bool activation = true;  // vLLM's name for it
    bool cut = true;
    in.text("model", &model_).flag("raw_scores", &raw_).count("top_n", 0, &top_).flag("use_activation", &activation);
    in.flag("truncation", &cut);
    raw_ = raw_ || !activation;
    // Excess text of a document is truncated, as in those APIs.
    if (!tei || !cut) wishes_.truncate = cut ? "CUT" : "NONE";
    return in.wishes(from.auto_truncate, &wishes_).fault();
  }

  // Reads texts, and for Cohere and Jina also objects: their field `text`, or `rank_fields` as lines of YAML.
  MaybeFault read_documents(const json& from, const std::string& field) {
    if (!from.is_array() || field == "texts") return read_texts(from, field, true, &second_);
    auto texts = json::array();
    for (const auto& document : from) {
      json text = document;
      if (document.is_object()) {
        if (auto fault = read_object(document, &text)) return fault;
      }
      if (again_) {
        json shown = document.is_object() ? document : json::object();
        if (!shown.contains("text")) shown["text"] = text;
        shown_.push_back(dumped(shown));
      }
      texts.push_back(std::move(text));
    }
    return read_texts(texts, field, true, &second_);
  }

  MaybeFault read_object(const json& document, json* out) const {
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

  void write_scores(const ModelSpec& model, const inference::ModelInferResponse& answer, Rows* made,
                    std::string* out) override {
    auto& scores = made->values;
    auto order = ranks(scores.data(), scores.size());
    if (top_ > 0 && static_cast<std::size_t>(top_) < order.size()) order.resize(static_cast<std::size_t>(top_));
    const bool tei = dialect_ == Dialect::kTei;
    if (!tei) {
      *out = "{\"id\":" + dumped("rerank-" + std::string(answer.id())) + ",\"model\":" + dumped(model.name) +
             ",\"results\":";
    }
    append_list(order.size(), out, [&](std::size_t at) {
      const std::size_t i = order[at];
      *out += "{\"index\":" + std::to_string(i) + (tei ? ",\"score\":" : ",\"relevance_score\":");
      activate_score(model, &scores[i]);
      append_float(scores[i], out);
      if (again_) *out += tei ? ",\"text\":" : ",\"document\":";
      if (again_) *out += tei || infinity_ ? dumped(second_[i]) : shown_[i];
      *out += '}';
    });
    if (tei) return;
    const auto tokens = said(answer, "tokens");
    *out += ",\"usage\":" + usage_of(tokens);
    if (infinity_) {
      *out += R"(,"object":"rerank","created":)" + std::to_string(now_s_) + "}";
      return;
    }
    *out += std::string(R"(,"meta":{"api_version":{"version":")") + (api_ == 2 ? "2" : "1") +
            R"("},"billed_units":{"search_units":1},"tokens":{"input_tokens":)" + std::to_string(tokens) + "}}}";
  }

  static constexpr std::size_t kMostFields = 64;

  const int api_;
  std::vector<std::string> shown_;   // the returned documents, in JSON
  std::vector<std::string> fields_;  // of documents that are objects
  std::int64_t top_ = 0;             // 0: all
  bool again_ = false;               // return the documents
};

}  // namespace

std::unique_ptr<ApiTask> make_tei_predict() { return std::make_unique<TeiPredict>(); }
std::unique_ptr<ApiTask> make_classify() { return std::make_unique<Classify>(); }
std::unique_ptr<ApiTask> make_score() { return std::make_unique<Score>(); }
std::unique_ptr<ApiTask> make_either_rerank() { return std::make_unique<Rerank>(0); }
std::unique_ptr<ApiTask> make_rerank_v1() { return std::make_unique<Rerank>(1); }
std::unique_ptr<ApiTask> make_rerank_v2() { return std::make_unique<Rerank>(2); }

}  // namespace arlo::gateway
