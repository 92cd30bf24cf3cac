// Embeddings of texts in the APIs of OpenAI, Cohere and TEI, embeddings of each token, and similarities of texts.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/utf8.h"
#include "gateway/front/api/common.h"
#include "gateway/front/api/fields.h"
#include "gateway/front/api/task.h"
#include "rewrite/model.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

// The format of a vector's numbers: FP32, or their signs packed eight to a number, the first in the highest bit (1:
// above 0), as numbers from 0 to 255, or from -128 to 127. In base64 FP32 is little-endian.
struct Form {
  enum class Kind : std::uint8_t { kFloat, kUbinary, kBinary } kind = Kind::kFloat;
  bool base64 = false;

  static constexpr std::string_view kNames[] = {"float", "ubinary", "binary"};
  [[nodiscard]] std::string_view name() const { return base64 ? "base64" : kNames[static_cast<int>(kind)]; }
  bool operator==(const Form&) const = default;

  // INVALID_ARGUMENT: the kind is not supported here.
  MaybeFault read_kind(const std::string& field, std::string_view from) {
    const auto* const found = std::ranges::find(kNames, from);
    if (found != std::end(kNames)) {
      kind = static_cast<Kind>(found - std::begin(kNames));
      return {};
    }
    if (from == "int8" || from == "uint8") {
      return invalid(field + ": " + std::string(from) +
                     " needs the range of each number over a collection, which models here do not have");
    }
    return invalid(field + ": there is no " + arlo::quoted(from) + "; float, binary and ubinary are");
  }

  void append(const float* values, std::size_t count, std::string* out) const {
    if (kind == Kind::kFloat && !base64) return append_floats(values, count, out);
    std::string signs;
    std::string_view bytes(reinterpret_cast<const char*>(values), count * sizeof(float));
    if (kind != Kind::kFloat) bytes = signs = signs_of(values, count);
    if (base64) {
      *out += '"';
      append_base64(bytes, out);
      *out += '"';
      return;
    }
    append_list(bytes.size(), out, [&](std::size_t i) {
      *out += std::to_string(kind == Kind::kBinary ? static_cast<signed char>(bytes[i])
                                                   : static_cast<unsigned char>(bytes[i]));
    });
  }

 private:
  [[nodiscard]] std::string signs_of(const float* values, std::size_t count) const {
    const char none = kind == Kind::kBinary ? '\x80' : '\0';  // as a number 128 less
    std::string signs((count + 7) / 8, none);
    for (std::size_t i = 0; i < count; ++i) {
      if (values[i] > 0) signs[i / 8] = static_cast<char>(signs[i / 8] ^ 0x80 >> i % 8);
    }
    return signs;
  }
};

// The inputs to embed: texts, or token ids including special tokens, used as they are.
struct Inputs {
  std::vector<std::string> texts;
  TokenRows ids;

  [[nodiscard]] std::size_t rows() const { return std::max(texts.size(), ids.size()); }
  [[nodiscard]] std::size_t characters() const {
    std::size_t count = count_characters_of(texts);
    for (std::size_t row = 0; texts.empty() && row < ids.size(); ++row) count += ids[row].size();
    return count;
  }

  // `empty_texts`: they are allowed.
  MaybeFault read(Fields& in, const char* field, bool empty_texts) {
    const json* from = in.needed(field);
    const std::string what(field);
    if (from == nullptr) return in.fault();
    if (from->is_string()) return read_texts(json::array({*from}), what, empty_texts, &texts);
    if (from->is_array() && from->empty()) return nothing_in(what + " is empty");
    if (!from->is_array()) return invalid(what + " must be a text, a list of texts, or token ids; and not empty");
    if (from->front().is_number()) return read_ids(*from);
    if (!from->front().is_array()) return read_texts(*from, what, empty_texts, &texts);
    for (const auto& row : *from) {
      if (!row.is_array()) return invalid(what + ": token ids are lists of numbers, not beside anything else");
      if (auto fault = read_ids(row)) return fault;
    }
    return {};
  }

 private:
  MaybeFault read_ids(const json& from) {
    auto& row = ids.emplace_back();
    for (const auto& id : from) {
      if (!whole(id)) return invalid("input: token ids are whole numbers, not beside anything else");
      row.push_back(id.get<std::int64_t>());
    }
    if (row.empty()) return nothing_in("input: a list of token ids is empty");
    return {};
  }
};

// Requests the output. UNIMPLEMENTED: the model has none.
MaybeFault ask_output(const ModelSpec& model, bool of_tokens, inference::ModelInferRequest* out) {
  const int output = model.vector_output(of_tokens);
  if (output < 0) {
    return Fault{Code::kUnimplemented, "model '" + model.name + "' gives no embedding of a " +
                                           (of_tokens ? "token: it has no output last_hidden_state"
                                                      : "text: it has no output sentence_embedding")};
  }
  out->set_model_name(model.name);
  out->add_outputs()->set_name(model.outputs[static_cast<std::size_t>(output)].name);
  return {};
}

void normalize(float* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
  if (sum == 0) return;
  const double by = 1 / std::sqrt(sum);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(values[i] * by);
}

// One vector per text, from its row or from the rows of its pieces.
class Vectors : public ApiTask {
 public:
  using ApiTask::ApiTask;

  [[nodiscard]] bool fits(const ModelSpec& model) const final { return model.vector_output(false) >= 0; }
  [[nodiscard]] std::optional<std::size_t> characters() const final { return inputs_.characters(); }
  bool meant_for(std::string_view input_type) final {
    if (wishes_.input_type.empty()) wishes_.input_type = input_type;
    return true;
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) final {
    if (auto fault = ask_output(model, false, out)) return fault;
    const auto whole = model.outputs[static_cast<std::size_t>(model.vector_output(false))].dims[0];
    if (whole >= 0 && dimensions_ > whole) {
      return invalid("dimensions: model '" + model.name + "' has " + std::to_string(whole));
    }
    if (dimensions_ == 0) dimensions_ = model.cut_to();
    if (dimensions_ != 0 && model.flow == nullptr) {
      (*out->mutable_parameters())["dimensions"].set_int64_param(dimensions_);
    }
    if (auto fault = check_rows(inputs_.rows(), most_rows)) return fault;
    std::string_view prompt;
    auto& ids = inputs_.ids;
    auto fault = find_prompt(model, wishes_.prompt, wishes_.input_type, &prompt);
    if (!fault && ids.empty() && wishes_.truncate == "CHUNK") {
      fault = tokenize_whole(model, prompt, inputs_.texts, wishes_, most_rows, job_.get(), &ids, &pieces_);
      for (const auto& row : ids) weights_.push_back(static_cast<double>(row.size()));
    } else if (!fault && ids.empty() && wishes_.own_tokens()) {
      fault = tokenize(model, prompt, inputs_.texts, wishes_, job_.get(), &ids);
    }
    if (fault) return fault;
    add_wishes(wishes_, ids.empty(), out);
    if (ids.empty()) return add_texts(kText, {}, inputs_.texts, out);
    for (const auto& row : ids) tokens_ += static_cast<std::int64_t>(row.size());
    return add_ids(model, ids, out);
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, HttpAnswer* out) final {
    Rows made;
    if (auto fault = vectors(answer, &made)) return fault;
    return write_vectors(model, answer, made, out);
  }

 protected:
  // `field`: with the inputs; null: they have been read already.
  MaybeFault read_vectors(Fields& in, const ApiBody& from, const char* field, bool empty_texts) {
    if (field != nullptr) {
      if (auto fault = inputs_.read(in, field, empty_texts)) return fault;
    }
    in.text("model", &model_).count("dimensions", 1, &dimensions_).flag("normalize", &normalize_);
    return in.wishes(from.auto_truncate, &wishes_).fault();
  }
  // Writes one row per text, with the requested dimensions.
  virtual MaybeFault write_vectors(const ModelSpec& model, const inference::ModelInferResponse& answer, Rows& made,
                                   HttpAnswer* out) = 0;

  // NOLINTBEGIN(cppcoreguidelines-non-private-member-variables-in-classes)
  Inputs inputs_;
  TextWishes wishes_;
  bool normalize_ = true;
  std::int64_t dimensions_ = 0;  // 0: all of the model's
  std::int64_t tokens_ = 0;
  std::vector<std::size_t> pieces_;  // rows per text; empty: one
                                     // NOLINTEND(cppcoreguidelines-non-private-member-variables-in-classes)

 private:
  MaybeFault vectors(const inference::ModelInferResponse& answer, Rows* made) {
    if (auto fault = read_rows(answer, std::max(inputs_.ids.size(), inputs_.rows()), made, pieces_)) return fault;
    const std::size_t have = made->each;
    const std::size_t each = dimensions_ == 0 ? have : static_cast<std::size_t>(dimensions_);
    if (each > have) {
      return Fault{Code::kInternal, "the worker's answer has vectors of " + std::to_string(have) + " numbers"};
    }
    if (tokens_ == 0) tokens_ = said(answer, "tokens");
    if (!pieces_.empty()) pool(made);
    const std::size_t rows = made->count();
    for (std::size_t row = 0; row < rows; ++row) {  // in place: the destination is never behind the source
      float* const to = made->values.data() + row * each;
      std::copy_n((*made)[row], each, to);
      if (normalize_) normalize(to, each);
    }
    made->each = each;
    made->values.resize(rows * each);
    return {};
  }

  // Averages the pieces of each text, weighted by their tokens.
  void pool(Rows* made) const {
    std::vector<float> pooled;
    pooled.reserve(pieces_.size() * made->each);
    std::size_t row = 0;
    std::vector<double> sum(made->each);
    for (const std::size_t count : pieces_) {
      std::fill(sum.begin(), sum.end(), 0);
      double weight = 0;
      for (std::size_t k = 0; k < count; ++k, ++row) {
        weight += weights_[row];
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weights_[row] * (*made)[row][i];
      }
      for (const double value : sum) pooled.push_back(static_cast<float>(value / weight));
    }
    made->values = std::move(pooled);
  }

  std::vector<double> weights_;  // per row
};

class OpenAiEmbeddings final : public Vectors {
 public:
  OpenAiEmbeddings() : Vectors(Dialect::kOpenAi) {}

 private:
  enum class Encoding : std::uint8_t { kNumbers, kBase64, kBytes, kBytesOnly };
  static constexpr std::string_view kEncodings[] = {"float", "base64", "bytes", "bytes_only"};
  static constexpr std::size_t kMostInHeader = 48;  // rows: clients accept headers of about 8 KiB

  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    if (auto fault = read_vectors(in, from, "input", false)) return fault;
    std::string name = "float";
    if (in.text("encoding_format", &name).fault()) return in.fault();
    const auto* const found = std::ranges::find(kEncodings, name);
    if (found == std::end(kEncodings)) return invalid("encoding_format must be float, base64, bytes or bytes_only");
    encoding_ = static_cast<Encoding>(found - std::begin(kEncodings));
    form_.base64 = encoding_ == Encoding::kBase64;
    name = "float";
    if (in.text("embedding_type", &name).fault()) return in.fault();
    if (auto fault = form_.read_kind("embedding_type", name)) return fault;
    if (encoding_ < Encoding::kBytes) return {};
    if (form_.kind != Form::Kind::kFloat) return invalid("encoding_format: bytes are of embedding_type float");
    name = "float32";
    if (in.text("embed_dtype", &name).fault()) return in.fault();
    if (name != "float32") return invalid("embed_dtype: bytes are of float32, and of no other");
    name = "little";
    if (in.text("endianness", &name).fault()) return in.fault();
    if (name != "little" && name != "native") return invalid("endianness: bytes are little-endian");
    return {};
  }

  MaybeFault write_vectors(const ModelSpec& model, const inference::ModelInferResponse&, Rows& made,
                           HttpAnswer* out) override {
    if (encoding_ >= Encoding::kBytes) return write_bytes(model, made, out);
    auto& body = out->body;
    body.reserve(made.values.size() * 14 + made.count() * 64 + 128);
    body = "{\"object\":\"list\",\"data\":";
    append_list(made.count(), &body, [&](std::size_t row) {
      body += "{\"object\":\"embedding\",\"index\":" + std::to_string(row) + ",\"embedding\":";
      form_.append(made[row], made.each, &body);
      if (!pieces_.empty()) body += ",\"pieces\":" + std::to_string(pieces_[row]);
      body += '}';
    });
    body += ",\"model\":" + dumped(model.name) + ",\"usage\":" + usage_of(tokens_) + "}";
    return {};
  }

  // vLLM's format: all vectors as they lie in memory, described by a header.
  MaybeFault write_bytes(const ModelSpec& model, const Rows& made, HttpAnswer* out) const {
    const std::size_t bytes = made.each * sizeof(float);
    if (encoding_ == Encoding::kBytes) {
      if (made.count() > kMostInHeader) {
        return invalid("encoding_format bytes: a header says of each vector where it is, which has room for " +
                       std::to_string(kMostInHeader) + "; take bytes_only, or send fewer at a time");
      }
      auto data = json::array();
      for (std::size_t row = 0; row < made.count(); ++row) {
        data.push_back({{"index", row},
                        {"embed_dtype", "float32"},
                        {"endianness", "little"},
                        {"start", row * bytes},
                        {"end", (row + 1) * bytes},
                        {"shape", {made.each}}});
      }
      const json usage = {{"prompt_tokens", tokens_}, {"total_tokens", tokens_}};
      // Escaped, because a header is ASCII.
      const json said = {{"model", model.name}, {"data", data}, {"usage", usage}};
      out->headers = "metadata: " + said.dump(-1, ' ', true, json::error_handler_t::replace) + "\r\n";
    }
    out->type = "application/octet-stream";
    out->body.assign(reinterpret_cast<const char*>(made.values.data()), made.values.size() * sizeof(float));
    return {};
  }

  Encoding encoding_ = Encoding::kNumbers;
  Form form_;
};

class CohereEmbed final : public Vectors {
 public:
  explicit CohereEmbed(int version) : Vectors(Dialect::kCohere), api_(version) {}

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    const json* texts = in.given("texts");
    const json* inputs = in.given("inputs");
    if (in.given("images") != nullptr) return invalid("images: texts are taken, and nothing else");
    if (texts != nullptr && inputs != nullptr) return invalid("inputs must not stand beside texts: send one of them");
    if (texts == nullptr && inputs == nullptr) return invalid("texts is missing");
    auto fault = inputs != nullptr ? read_blocks(*inputs) : read_texts(*texts, "texts", true, &inputs_.texts);
    if (fault) return fault;
    wishes_.truncate = "CUT";
    if (fault = read_vectors(in, from, nullptr, true); fault) return fault;
    in.count("output_dimension", 1, &dimensions_).count("max_tokens", 1, &wishes_.most_tokens);
    const json* types = in.given("embedding_types");
    typed_ = api_ == 2 || types != nullptr;
    if (types == nullptr) return in.fault();
    if (!types->is_array() || types->empty()) return invalid("embedding_types must be a list, and not empty");
    forms_.clear();
    for (const auto& type : *types) {
      if (!type.is_string()) return invalid("embedding_types: it is a list of texts, and one of them is none");
      const auto& name = type.get_ref<const std::string&>();
      Form wanted{.base64 = name == "base64"};
      if (!wanted.base64) fault = wanted.read_kind("embedding_types", name);
      if (fault) return fault;
      if (std::ranges::find(forms_, wanted) == forms_.end()) forms_.push_back(wanted);
    }
    return {};
  }

  // Reads [{"content": [{"type": "text", "text": "..."}, ...]}, ...]: one vector each, its texts joined as lines.
  MaybeFault read_blocks(const json& from) {
    if (!from.is_array()) return invalid("inputs must be a list of objects with content");
    auto texts = json::array();
    for (const auto& input : from) {
      const auto* content = input.is_object() && input.contains("content") ? &input["content"] : nullptr;
      if (content == nullptr || !content->is_array() || content->empty()) {
        return invalid("inputs: each is an object with content, a list that is not empty");
      }
      std::string joined;
      for (const auto& block : *content) {
        if (!block.is_object() || block.value("type", json()) != "text" || !block.value("text", json()).is_string()) {
          return invalid("inputs: content of type text is taken, and nothing else");
        }
        if (&block != &content->front()) joined += '\n';
        joined += block["text"].get_ref<const std::string&>();
      }
      texts.push_back(std::move(joined));
    }
    return read_texts(texts, "inputs", true, &inputs_.texts);
  }

  MaybeFault write_vectors(const ModelSpec&, const inference::ModelInferResponse& answer, Rows& made,
                           HttpAnswer* out) override {
    auto& body = out->body;
    body = "{\"id\":" + dumped("embed-" + std::string(answer.id())) + ",\"response_type\":\"embeddings_" +
           (typed_ ? "by_type\",\"embeddings\":{" : "floats\",\"embeddings\":");
    for (const auto& form : forms_) {
      if (form != forms_.front()) body += ',';
      if (typed_) body.append("\"").append(form.name()).append("\":");
      append_list(made.count(), &body, [&](std::size_t row) { form.append(made[row], made.each, &body); });
    }
    body += std::string(typed_ ? "}" : "") + ",\"texts\":" + dumped(inputs_.texts);
    const auto tokens = std::to_string(tokens_);
    body += R"(,"meta":{"api_version":{"version":")" + std::to_string(api_) + R"("},"billed_units":{"input_tokens":)" +
            tokens + R"(},"tokens":{"input_tokens":)" + tokens + "}}}";
    return {};
  }

  const int api_;
  std::vector<Form> forms_{Form{}};
  bool typed_ = false;  // the answer names the types
};

class TeiEmbed final : public Vectors {
 public:
  TeiEmbed() : Vectors(Dialect::kTei) {}

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override { return read_vectors(in, from, "inputs", true); }

  MaybeFault write_vectors(const ModelSpec&, const inference::ModelInferResponse&, Rows& made,
                           HttpAnswer* out) override {
    append_list(made.count(), &out->body, [&](std::size_t row) { append_floats(made[row], made.each, &out->body); });
    std::string counts;
    for (const std::size_t count : pieces_) counts += (counts.empty() ? "" : ",") + std::to_string(count);
    if (!counts.empty()) out->headers = "x-pieces: " + counts + "\r\n";
    return {};
  }
};

class TeiSimilarity final : public Vectors {
 public:
  TeiSimilarity() : Vectors(Dialect::kTei) {}

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    const json* inputs = in.find("inputs");
    if (inputs == nullptr || !inputs->is_object()) {
      return invalid("inputs must be an object with source_sentence and sentences");
    }
    Fields texts(*inputs);
    if (!texts.has("source_sentence")) return invalid("inputs: source_sentence is missing");
    if (texts.text("source_sentence", &inputs_.texts.emplace_back()).fault()) return texts.fault();
    const json* sentences = texts.find("sentences");
    if (sentences == nullptr) return invalid("inputs: sentences is missing");
    if (auto fault = read_texts(*sentences, "sentences", true, &inputs_.texts)) return fault;
    in.merge("parameters");
    auto fault = read_vectors(in, from, nullptr, true);
    normalize_ = true;
    return fault;
  }

  MaybeFault write_vectors(const ModelSpec&, const inference::ModelInferResponse&, Rows& made,
                           HttpAnswer* out) override {
    append_list(made.count() - 1, &out->body, [&](std::size_t i) {
      append_float(static_cast<float>(std::inner_product(made[0], made[1], made[i + 1], 0.0)), &out->body);
    });
    return {};
  }
};

// One vector per token. The rows' lengths must be known to tell tokens from padding.
class TeiEmbedAll final : public ApiTask {
 public:
  TeiEmbedAll() : ApiTask(Dialect::kTei) {}
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return model.vector_output(true) >= 0; }
  [[nodiscard]] std::optional<std::size_t> characters() const override { return inputs_.characters(); }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    if (auto fault = ask_output(model, true, out)) return fault;
    if (auto fault = check_rows(inputs_.rows(), most_rows)) return fault;
    if (inputs_.ids.empty()) {
      std::string_view prompt;
      if (auto fault = find_prompt(model, wishes_.prompt, wishes_.input_type, &prompt)) return fault;
      if (auto fault = tokenize(model, prompt, inputs_.texts, wishes_, job_.get(), &inputs_.ids)) return fault;
    }
    add_wishes(wishes_, false, out);
    return add_ids(model, inputs_.ids, out);
  }

  MaybeFault write(const ModelSpec&, const inference::ModelInferResponse& answer, HttpAnswer* out) override {
    const auto& ids = inputs_.ids;
    Rows made;
    if (auto fault = read_rows(answer, ids.size(), &made)) return fault;
    std::size_t width = 0;
    for (const auto& row : ids) width = std::max(width, row.size());
    const std::size_t each = made.each / width;
    if (each == 0 || each * width != made.each) {
      return Fault{Code::kInternal, "the worker's answer has other lengths"};
    }
    append_list(ids.size(), &out->body, [&](std::size_t row) {
      append_list(ids[row].size(), &out->body,
                  [&](std::size_t token) { append_floats(made[row] + token * each, each, &out->body); });
    });
    return {};
  }

 private:
  MaybeFault read_fields(Fields& in, const ApiBody& from) override {
    if (auto fault = inputs_.read(in, "inputs", true)) return fault;
    if (in.text("model", &model_).wishes(from.auto_truncate, &wishes_).fault()) return in.fault();
    if (wishes_.truncate == "CHUNK") return invalid("truncate CHUNK is for embeddings of texts, not of tokens");
    return {};
  }

  Inputs inputs_;
  TextWishes wishes_;
};

}  // namespace

std::unique_ptr<ApiTask> make_openai_embeddings() { return std::make_unique<OpenAiEmbeddings>(); }
std::unique_ptr<ApiTask> make_cohere_embed_v1() { return std::make_unique<CohereEmbed>(1); }
std::unique_ptr<ApiTask> make_cohere_embed_v2() { return std::make_unique<CohereEmbed>(2); }
std::unique_ptr<ApiTask> make_tei_embed() { return std::make_unique<TeiEmbed>(); }
std::unique_ptr<ApiTask> make_tei_embed_all() { return std::make_unique<TeiEmbedAll>(); }
std::unique_ptr<ApiTask> make_tei_similarity() { return std::make_unique<TeiSimilarity>(); }

}  // namespace arlo::gateway
