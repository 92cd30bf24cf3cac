#include "gateway/front/embeddings.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "gateway/front/token_rows.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

MaybeFault read_ids(const json& from, std::vector<std::int64_t>* out) {
  for (const auto& id : from) {
    if (!whole(id)) return invalid("input: token ids are whole numbers, not beside anything else");
    out->push_back(id.get<std::int64_t>());
  }
  if (out->empty()) return invalid("input: a list of token ids is empty");
  return {};
}

// What is to be embedded: texts, or token ids with their special tokens, taken as they are.
struct Inputs {
  std::vector<std::string> texts;
  TokenRows ids;
  [[nodiscard]] std::size_t rows() const { return std::max(texts.size(), ids.size()); }
};

MaybeFault read_inputs(const json& body, const std::string& field, Inputs* out) {
  const auto found = body.find(field);
  if (found == body.end()) return invalid(field + " is missing");
  const json& from = *found;
  if (from.is_string()) return read_texts(json::array({from}), field, &out->texts);
  if (!from.is_array() || from.empty()) {
    return invalid(field + " must be a text, a list of texts, or token ids; and not empty");
  }
  if (from.front().is_number()) return read_ids(from, &out->ids.emplace_back());
  if (!from.front().is_array()) return read_texts(from, field, &out->texts);
  for (const auto& row : from) {
    if (!row.is_array()) return invalid(field + ": token ids are lists of numbers, not beside anything else");
    if (auto fault = read_ids(row, &out->ids.emplace_back())) return fault;
  }
  return {};
}

// The output that is a vector for each row, or for each token: the one named so, or the only one.
int output_of(const ModelSpec& model, bool of_tokens) {
  int only = -1;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const auto& output = model.outputs[i];
    if (output.token_level != of_tokens || output.datatype != "FP32" || output.dims.size() != 1 ||
        (model.inner >> i & 1) != 0) {
      continue;
    }
    if (output.name == (of_tokens ? "last_hidden_state" : "sentence_embedding")) return static_cast<int>(i);
    if (output.name == "logits" || output.name == "probabilities") continue;
    only = only == -1 ? static_cast<int>(i) : -2;
  }
  return std::max(only, -1);
}

MaybeFault ask_output(const ModelSpec& model, bool of_tokens, inference::ModelInferRequest* out,
                      const OutputSpec** spec) {
  const int output = output_of(model, of_tokens);
  if (output < 0) {
    return Fault{Code::kUnimplemented, "model '" + model.name + "' gives no embedding of a " +
                                           (of_tokens ? "token: it has no output last_hidden_state"
                                                      : "text: it has no output sentence_embedding")};
  }
  *spec = &model.outputs[static_cast<std::size_t>(output)];
  out->set_model_name(model.name);
  out->add_outputs()->set_name((*spec)->name);
  return {};
}

void normalize(float* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
  if (sum == 0) return;
  const double by = 1 / std::sqrt(sum);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(values[i] * by);
}

// A vector for each text: of its row, or of the rows that a long one was cut into.
class Vectors : public ApiTask {
 public:
  using ApiTask::ApiTask;
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return output_of(model, false) >= 0; }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    const OutputSpec* spec = nullptr;
    if (auto fault = ask_output(model, false, out, &spec)) return fault;
    if (spec->dims[0] >= 0 && dimensions_ > spec->dims[0]) {
      return invalid("dimensions: model '" + model.name + "' has " + std::to_string(spec->dims[0]));
    }
    if (auto fault = check_rows(inputs_.rows(), most_rows)) return fault;
    std::string_view prompt;
    if (auto fault = find_prompt(model, wishes_, &prompt)) return fault;
    if (wishes_.truncate == "CHUNK" && inputs_.ids.empty()) {
      if (auto fault = tokenize_whole(model, prompt, inputs_.texts, most_rows, job_.get(), &inputs_.ids, &pieces_))
        return fault;
      for (const auto& row : inputs_.ids) weights_.push_back(static_cast<double>(row.size()));
    }
    add_wishes(wishes_, inputs_.ids.empty(), out);
    if (!inputs_.ids.empty()) {
      for (const auto& row : inputs_.ids) tokens_ += static_cast<std::int64_t>(row.size());
      return add_ids(model, inputs_.ids, out);
    }
    return add_texts(kText, prompt, inputs_.texts, out);
  }

 protected:
  MaybeFault read_vectors(const json& body, const char* field) {
    if (field != nullptr) {
      if (auto fault = read_inputs(body, field, &inputs_)) return fault;
    }
    if (auto fault = read_text(body, "model", &model_)) return fault;
    if (auto fault = read_count(body, "dimensions", 1, &dimensions_)) return fault;
    if (auto fault = read_bool(body, "normalize", &normalize_)) return fault;
    return read_wishes(body, &wishes_);
  }

  // Those of the answer, `each` numbers for each text, as they were asked for.
  MaybeFault vectors(const inference::ModelInferResponse& answer, std::vector<float>* out, std::size_t* each) {
    std::size_t have = 0;
    if (auto fault = read_rows(answer, std::max(inputs_.ids.size(), inputs_.rows()), out, &have)) return fault;
    *each = dimensions_ == 0 ? have : static_cast<std::size_t>(dimensions_);
    if (*each > have) {
      return Fault{Code::kInternal, "the worker's answer has vectors of " + std::to_string(have) + " numbers"};
    }
    if (tokens_ == 0) tokens_ = said(answer, "tokens");
    if (!pieces_.empty()) pool(have, out);
    const std::size_t rows = out->size() / have;
    for (std::size_t row = 0; row < rows; ++row) {  // in place: what is cut to is never behind what it comes from
      float* to = out->data() + row * *each;
      std::copy_n(out->data() + row * have, *each, to);
      if (normalize_) normalize(to, *each);
    }
    out->resize(rows * *each);
    return {};
  }
  [[nodiscard]] const std::vector<std::size_t>& pieces() const { return pieces_; }  // rows of each text; empty: one

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  Inputs inputs_;
  TextWishes wishes_;
  bool normalize_ = true;
  std::int64_t dimensions_ = 0;  // 0: all that the model has
  std::int64_t tokens_ = 0;
  // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  // Of each text the mean of its pieces, by how many tokens each has.
  void pool(std::size_t have, std::vector<float>* out) const {
    std::vector<float> pooled;
    pooled.reserve(pieces_.size() * have);
    std::size_t row = 0;
    std::vector<double> sum(have);
    for (const std::size_t count : pieces_) {
      std::fill(sum.begin(), sum.end(), 0);
      double weight = 0;
      for (std::size_t k = 0; k < count; ++k, ++row) {
        weight += weights_[row];
        for (std::size_t i = 0; i < have; ++i) sum[i] += weights_[row] * (*out)[row * have + i];
      }
      for (const double value : sum) pooled.push_back(static_cast<float>(value / weight));
    }
    *out = std::move(pooled);
  }

  std::vector<std::size_t> pieces_;
  std::vector<double> weights_;  // of each row
};

class OpenAiEmbeddings final : public Vectors {
 public:
  OpenAiEmbeddings() : Vectors(Dialect::kOpenAi) {}

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    if (auto fault = read_vectors(body, "input")) return fault;
    if (model_.empty()) return invalid("model is missing");
    std::string format;
    if (auto fault = read_text(body, "encoding_format", &format)) return fault;
    if (!format.empty() && format != "float" && format != "base64") {
      return invalid("encoding_format must be float or base64");
    }
    base64_ = format == "base64";
    return {};
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> values;
    std::size_t each = 0;
    if (auto fault = vectors(answer, &values, &each)) return fault;
    const std::size_t rows = values.size() / each;
    auto& body = out->body;
    body.reserve(values.size() * 14 + rows * 64 + 128);
    body = "{\"object\":\"list\",\"data\":[";
    for (std::size_t row = 0; row < rows; ++row) {
      if (row != 0) body += ',';
      body += "{\"object\":\"embedding\",\"index\":" + std::to_string(row) + ",\"embedding\":";
      const float* from = values.data() + row * each;
      if (base64_) {
        body += '"';
        append_base64({reinterpret_cast<const char*>(from), each * sizeof(float)}, &body);
        body += '"';
      } else {
        append_floats(from, each, &body);
      }
      if (!pieces().empty()) body += ",\"pieces\":" + std::to_string(pieces()[row]);
      body += '}';
    }
    body += "],\"model\":" + dumped(model.name) + ",\"usage\":" + usage_of(tokens_) + "}";
    return {};
  }

 private:
  bool base64_ = false;  // little-endian FP32
};

class TeiEmbed final : public Vectors {
 public:
  TeiEmbed() : Vectors(Dialect::kTei) {}

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    return read_vectors(body, "inputs");
  }

  MaybeFault write(const ModelSpec&, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> values;
    std::size_t each = 0;
    if (auto fault = vectors(answer, &values, &each)) return fault;
    out->body = "[";
    for (std::size_t at = 0; at < values.size(); at += each) {
      if (at != 0) out->body += ',';
      append_floats(values.data() + at, each, &out->body);
    }
    out->body += ']';
    std::string pieces_of;
    for (const std::size_t count : pieces()) pieces_of += (pieces_of.empty() ? "" : ",") + std::to_string(count);
    if (!pieces_of.empty()) out->headers = "x-pieces: " + pieces_of + "\r\n";
    return {};
  }
};

class TeiSimilarity final : public Vectors {
 public:
  TeiSimilarity() : Vectors(Dialect::kTei) {}

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    const auto inputs = body.find("inputs");
    if (inputs == body.end() || !inputs->is_object()) {
      return invalid("inputs must be an object with source_sentence and sentences");
    }
    auto& source = inputs_.texts.emplace_back();
    if (auto fault = read_text(*inputs, "source_sentence", &source)) return fault;
    if (source.empty()) return invalid("inputs: source_sentence is missing, or empty");
    const auto sentences = inputs->find("sentences");
    if (sentences == inputs->end()) return invalid("inputs: sentences is missing");
    if (auto fault = read_texts(*sentences, "sentences", &inputs_.texts)) return fault;
    const auto parameters = body.find("parameters");
    if (parameters != body.end() && parameters->is_object()) {
      const json wishes = std::move(*parameters);  // they may name a field `parameters` themselves
      body.update(wishes);
    }
    return read_vectors(body, nullptr);
  }

  MaybeFault write(const ModelSpec&, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    normalize_ = true;
    std::vector<float> values;
    std::size_t each = 0;
    if (auto fault = vectors(answer, &values, &each)) return fault;
    std::vector<float> alike;
    for (std::size_t at = each; at < values.size(); at += each) {
      alike.push_back(static_cast<float>(std::inner_product(
          values.begin(), values.begin() + static_cast<std::ptrdiff_t>(each), values.data() + at, 0.0)));
    }
    append_floats(alike.data(), alike.size(), &out->body);
    return {};
  }
};

// Vectors of the tokens. The rows' lengths must be known to tell them from what they are filled with.
class TeiEmbedAll final : public ApiTask {
 public:
  TeiEmbedAll() : ApiTask(Dialect::kTei) {}
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return output_of(model, true) >= 0; }

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    if (auto fault = read_inputs(body, "inputs", &inputs_)) return fault;
    if (auto fault = read_text(body, "model", &model_)) return fault;
    if (auto fault = read_wishes(body, &wishes_)) return fault;
    if (wishes_.truncate == "CHUNK") return invalid("truncate CHUNK is for embeddings of texts, not of tokens");
    return {};
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    const OutputSpec* spec = nullptr;
    if (auto fault = ask_output(model, true, out, &spec)) return fault;
    if (auto fault = check_rows(inputs_.rows(), most_rows)) return fault;
    if (inputs_.ids.empty()) {
      std::string_view prompt;
      if (auto fault = find_prompt(model, wishes_, &prompt)) return fault;
      if (auto fault = tokenize(model, prompt, inputs_.texts, wishes_, job_.get(), &inputs_.ids)) return fault;
    }
    add_wishes(wishes_, false, out);
    return add_ids(model, inputs_.ids, out);
  }

  MaybeFault write(const ModelSpec&, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> values;
    std::size_t row_size = 0;
    if (auto fault = read_rows(answer, inputs_.ids.size(), &values, &row_size)) return fault;
    std::size_t width = 0;
    for (const auto& row : inputs_.ids) width = std::max(width, row.size());
    const std::size_t each = row_size / width;
    if (each == 0 || each * width != row_size) return Fault{Code::kInternal, "the worker's answer has other lengths"};
    auto& body = out->body;
    body = "[";
    for (std::size_t row = 0; row < inputs_.ids.size(); ++row) {
      body += row == 0 ? "[" : ",[";
      for (std::size_t token = 0; token < inputs_.ids[row].size(); ++token) {
        if (token != 0) body += ',';
        append_floats(values.data() + row * row_size + token * each, each, &body);
      }
      body += ']';
    }
    body += ']';
    return {};
  }

 private:
  Inputs inputs_;
  TextWishes wishes_;
};

}  // namespace

std::unique_ptr<ApiTask> make_openai_embeddings() { return std::make_unique<OpenAiEmbeddings>(); }
std::unique_ptr<ApiTask> make_tei_embed() { return std::make_unique<TeiEmbed>(); }
std::unique_ptr<ApiTask> make_tei_embed_all() { return std::make_unique<TeiEmbedAll>(); }
std::unique_ptr<ApiTask> make_tei_similarity() { return std::make_unique<TeiSimilarity>(); }

}  // namespace arlo::gateway
