// Answers from the gateway's knowledge of a model: tokens of texts, texts of tokens, and the model's task.
#include <vector>

#include "gateway/front/api/common.h"
#include "gateway/front/api/fields.h"
#include "gateway/front/api/task.h"
#include "rewrite/model.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

constexpr std::size_t kMostTokens = 100'000;          // per request: an answer takes 70 bytes per token
constexpr std::size_t kMostBytes = 10 * kMostTokens;  // of texts that a helper tokenises

std::string place_of(const text::Place& place) {
  if (place.stop == 0) return R"(,"start":null,"stop":null})";
  return ",\"start\":" + std::to_string(place.start) + ",\"stop\":" + std::to_string(place.stop) + "}";
}

// A task answered from the gateway's knowledge of the model.
class Known : public ApiTask {
 public:
  Known() : ApiTask(Dialect::kTei) {}
  [[nodiscard]] bool calls() const final { return false; }
  MaybeFault ask(const ModelSpec&, std::size_t most_rows, inference::ModelInferRequest*) override {
    most_rows_ = most_rows;
    return {};
  }

 protected:
  std::size_t most_rows_ = 0;  // NOLINT(cppcoreguidelines-non-private-member-variables-in-classes)
};

class Tokenize final : public Known {
 public:
  MaybeFault read_fields(Fields& in, const ApiBody&) override {
    in.texts("inputs", &texts_).text("model", &model_).flag("add_special_tokens", &special_).prompt(&wishes_);
    return in.fault();
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest*) override {
    if (auto fault = check_rows(texts_.size(), most_rows)) return fault;
    if (auto fault = check_text(model)) return fault;
    std::string_view prompt;
    if (auto fault = find_prompt(model, wishes_.prompt, wishes_.input_type, &prompt)) return fault;
    const text::Limits limits{.most_tokens = kMostTokens, .add_special = special_, .with_places = true};
    if (model.text->elsewhere != nullptr) {
      std::size_t bytes = 0;
      for (const auto& text : texts_) bytes += text.size();
      if (bytes > kMostBytes) {
        return invalid("inputs: they have more than " + std::to_string(kMostBytes) + " bytes: send fewer at a time");
      }
    }
    job_->written = true;  // with offsets
    return encode_behind(*model.text, prompt, texts_, limits, job_.get(), &made_);
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse&, HttpAnswer* out) override {
    const auto& tokenizer = model.text->tokenizer;
    const bool here = model.text->elsewhere == nullptr;
    std::size_t count = 0;
    for (const auto& encoding : made_) {
      count += encoding.ids.size();
      if (encoding.cut || count > kMostTokens) {
        return invalid("inputs: they have more than " + std::to_string(kMostTokens) + " tokens: send fewer at a time");
      }
    }
    auto& body = out->body;
    append_list(made_.size(), &body, [&](std::size_t row) {
      const auto& encoding = made_[row];
      append_list(encoding.ids.size(), &body, [&](std::size_t i) {
        const auto id = encoding.ids[i];
        body += "{\"id\":" + std::to_string(id) +
                ",\"text\":" + dumped(here ? std::string(tokenizer.token(id)) : job_->words[row][i]) + ",\"special\":" +
                ((here ? encoding.places[i].stop == 0 : job_->specials[row][i] != 0) ? "true" : "false") +
                place_of(encoding.places[i]);
      });
    });
    return {};
  }

 private:
  std::vector<std::string> texts_;
  std::vector<text::Encoding> made_;
  TextWishes wishes_;
  bool special_ = true;
};

class Decode final : public Known {
 public:
  MaybeFault read_fields(Fields& in, const ApiBody&) override {
    const json* ids = in.find("ids");
    if (ids != nullptr && ids->is_array() && ids->empty()) return nothing_in("ids is empty");
    if (ids == nullptr || !ids->is_array()) {
      return invalid("ids must be token ids, or a list of such; and not empty");
    }
    const bool batch = ids->front().is_array();
    for (const auto& row : *ids) {
      if (batch && !row.is_array()) return invalid("ids: token ids are lists of numbers, not beside anything else");
      if (!batch) {
        if (rows_.empty()) rows_.emplace_back();
        if (auto fault = add(row)) return fault;
        continue;
      }
      rows_.emplace_back();
      for (const auto& id : row) {
        if (auto fault = add(id)) return fault;
      }
    }
    return in.text("model", &model_).flag("skip_special_tokens", &skip_).fault();
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest*) override {
    if (auto fault = check_rows(rows_.size(), most_rows)) return fault;
    if (auto fault = check_text(model)) return fault;
    if (model.text->elsewhere == nullptr) return {};
    job_->ids = rows_;
    job_->skip_special = skip_;
    if (auto fault = wait_for(job_.get(), *model.text)) return fault;
    if (job_->decoded.size() == rows_.size()) return {};
    return Fault{Code::kInternal, "the tokenizer answered for other ids"};
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse&, HttpAnswer* out) override {
    auto texts = json::array();
    const bool here = model.text->elsewhere == nullptr;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      texts.push_back(here ? model.text->tokenizer.decode(rows_[row], skip_) : job_->decoded[row]);
    }
    out->body = dumped(texts);
    return {};
  }

 private:
  MaybeFault add(const json& id) {
    const bool fits = id.is_number_integer() && id >= 0 && id <= INT32_MAX;
    if (!fits) return invalid("ids: token ids are whole numbers, not beside anything else");
    if (++count_ > kMostTokens) return invalid("ids: at most " + std::to_string(kMostTokens) + " are taken");
    rows_.back().push_back(id.get<std::int32_t>());
    return {};
  }

  std::vector<text::Ids> rows_;
  std::size_t count_ = 0;
  bool skip_ = true;
};

class Info final : public Known {
 public:
  MaybeFault read(const ApiBody& from) override {
    model_ = from.query_model;
    cut_ = from.auto_truncate;
    return {};
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse&, HttpAnswer* out) override {
    const int logits = model.find_output("logits");
    json type;
    if (logits >= 0 && !model.outputs[static_cast<std::size_t>(logits)].token_level) {
      const auto& dims = model.outputs[static_cast<std::size_t>(logits)].dims;
      json names = json::object();
      json numbers = json::object();
      for (std::size_t i = 0; i < model.labels.size(); ++i) {
        names[std::to_string(i)] = model.labels[i];
        numbers[model.labels[i]] = i;
      }
      const bool reranks = dims.size() == 1 && dims[0] == 1;
      type = {{reranks ? "reranker" : "classifier", {{"id2label", names}, {"label2id", numbers}}}};
    } else {
      type = {{"embedding", {{"pooling", "engine"}}}};
    }
    const json said = {{"model_id", model.name},
                       {"model_sha", nullptr},
                       {"model_dtype", "float32"},
                       {"served_model_name", model.name},
                       {"model_type", type},
                       {"max_concurrent_requests", 512},
                       {"max_input_length", model.longest},
                       {"max_batch_tokens", static_cast<std::size_t>(model.longest) * most_rows_},
                       {"max_batch_requests", nullptr},
                       {"max_client_batch_size", most_rows_},
                       {"auto_truncate", cut_},
                       {"tokenization_workers", 1},
                       {"version", kServerVersion},
                       {"sha", nullptr},
                       {"docker_label", nullptr}};
    out->body = dumped(said);
    return {};
  }

 private:
  bool cut_ = false;
};

class Sparse final : public Known {
 public:
  MaybeFault read_fields(Fields& in, const ApiBody&) override { return in.text("model", &model_).fault(); }
  MaybeFault ask(const ModelSpec& model, std::size_t, inference::ModelInferRequest*) override {
    return Fault{Code::kUnimplemented, "model '" + model.name + "' gives no sparse embedding"};
  }
  MaybeFault write(const ModelSpec&, const inference::ModelInferResponse&, HttpAnswer*) override { return {}; }
};

}  // namespace

std::unique_ptr<ApiTask> make_tei_tokenize() { return std::make_unique<Tokenize>(); }
std::unique_ptr<ApiTask> make_tei_decode() { return std::make_unique<Decode>(); }
std::unique_ptr<ApiTask> make_tei_info() { return std::make_unique<Info>(); }
std::unique_ptr<ApiTask> make_tei_sparse() { return std::make_unique<Sparse>(); }

}  // namespace arlo::gateway
