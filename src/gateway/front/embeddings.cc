#include "gateway/front/embeddings.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "gateway/front/vectors.h"
#include "rewrite/prompts.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

// How OpenAI's answers have vectors.
enum class Encoding : std::uint8_t { kNumbers, kBase64, kBytes, kBytesOnly };

class OpenAiEmbeddings final : public Vectors {
 public:
  OpenAiEmbeddings() : Vectors(Dialect::kOpenAi) {}

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    if (auto fault = read_vectors(from, body, "input", false)) return fault;
    if (model_.empty()) return invalid("model is missing");
    std::string name = "float";
    if (auto fault = read_text(body, "encoding_format", &name)) return fault;
    const auto* const found = std::find(std::begin(kEncodings), std::end(kEncodings), name);
    if (found == std::end(kEncodings)) return invalid("encoding_format must be float, base64, bytes or bytes_only");
    encoding_ = static_cast<Encoding>(found - std::begin(kEncodings));
    name = "float";
    if (auto fault = read_text(body, "embedding_type", &name)) return fault;
    if (auto fault = read_kind("embedding_type", name, &kind_)) return fault;
    if (encoding_ < Encoding::kBytes) return {};
    if (kind_ != VectorKind::kFloat) return invalid("encoding_format: bytes are of embedding_type float");
    name = "float32";
    if (auto fault = read_text(body, "embed_dtype", &name)) return fault;
    if (name != "float32") return invalid("embed_dtype: bytes are of float32, and of no other");
    name = "little";
    if (auto fault = read_text(body, "endianness", &name)) return fault;
    if (name != "little" && name != "native") return invalid("endianness: bytes are little-endian");
    return {};
  }

  MaybeFault write(const ModelSpec& model, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> values;
    std::size_t each = 0;
    if (auto fault = vectors(answer, &values, &each)) return fault;
    const std::size_t rows = values.size() / each;
    if (encoding_ >= Encoding::kBytes) return write_bytes(model, values, rows, out);
    auto& body = out->body;
    body.reserve(values.size() * 14 + rows * 64 + 128);
    body = "{\"object\":\"list\",\"data\":[";
    for (std::size_t row = 0; row < rows; ++row) {
      if (row != 0) body += ',';
      body += "{\"object\":\"embedding\",\"index\":" + std::to_string(row) + ",\"embedding\":";
      const float* from = values.data() + row * each;
      if (encoding_ == Encoding::kBase64) {
        append_vector_base64(kind_, from, each, &body);
      } else {
        append_vector(kind_, from, each, &body);
      }
      if (!pieces().empty()) body += ",\"pieces\":" + std::to_string(pieces()[row]);
      body += '}';
    }
    body += "],\"model\":" + dumped(model.name) + ",\"usage\":" + usage_of(tokens_) + "}";
    return {};
  }

 private:
  static constexpr std::string_view kEncodings[] = {"float", "base64", "bytes", "bytes_only"};
  static constexpr std::size_t kMostInHeader = 48;  // rows: clients take headers of some 8 KiB

  // vLLM's: all vectors as they lie in memory, and in a header what they are.
  MaybeFault write_bytes(const ModelSpec& model, const std::vector<float>& values, std::size_t rows, ApiAnswer* out) {
    const std::size_t bytes = values.size() / rows * sizeof(float);
    if (encoding_ == Encoding::kBytes) {
      if (rows > kMostInHeader) {
        return invalid("encoding_format bytes: a header says of each vector where it is, which has room for " +
                       std::to_string(kMostInHeader) + "; take bytes_only, or send fewer at a time");
      }
      auto data = json::array();
      for (std::size_t row = 0; row < rows; ++row) {
        data.push_back({{"index", row},
                        {"embed_dtype", "float32"},
                        {"endianness", "little"},
                        {"start", row * bytes},
                        {"end", (row + 1) * bytes},
                        {"shape", {values.size() / rows}}});
      }
      const json usage = {{"prompt_tokens", tokens_}, {"total_tokens", tokens_}};
      // Escaped: a header is ASCII.
      const json said = {{"model", model.name}, {"data", data}, {"usage", usage}};
      out->headers = "metadata: " + said.dump(-1, ' ', true, json::error_handler_t::replace) + "\r\n";
    }
    out->type = "application/octet-stream";
    out->body.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return {};
  }

  Encoding encoding_ = Encoding::kNumbers;
  VectorKind kind_ = VectorKind::kFloat;
};

class CohereEmbed final : public Vectors {
 public:
  explicit CohereEmbed(int version) : Vectors(Dialect::kCohere), api_(version) {}

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    const auto given = [&](const char* field) { return body.contains(field) && !body[field].is_null(); };
    if (given("images")) return invalid("images: texts are taken, and nothing else");
    if (given("texts") && given("inputs")) return invalid("inputs must not stand beside texts: send one of them");
    if (given("inputs")) {
      if (auto fault = read_blocks(body["inputs"])) return fault;
    } else {
      if (!given("texts")) return invalid("texts is missing");
      if (auto fault = read_texts(body["texts"], "texts", true, &inputs_.texts)) return fault;
    }
    wishes_.truncate = "CUT";
    if (auto fault = read_vectors(from, body, nullptr, true)) return fault;
    if (auto fault = read_count(body, "output_dimension", 1, &dimensions_)) return fault;
    if (auto fault = read_count(body, "max_tokens", 1, &wishes_.most_tokens)) return fault;
    const auto types = body.find("embedding_types");
    typed_ = types != body.end() && !types->is_null();
    if (!typed_) return {};
    if (!types->is_array() || types->empty()) return invalid("embedding_types must be a list, and not empty");
    types_.clear();
    for (const auto& type : *types) {
      if (!type.is_string()) return invalid("embedding_types: it is a list of texts, and one of them is none");
      const auto& name = type.get_ref<const std::string&>();
      Type wanted{.base64 = name == "base64"};
      if (!wanted.base64) {
        if (auto fault = read_kind("embedding_types", name, &wanted.kind)) return fault;
      }
      if (std::ranges::find(types_, wanted) == types_.end()) types_.push_back(wanted);
    }
    return {};
  }

  MaybeFault write(const ModelSpec&, const inference::ModelInferResponse& answer, ApiAnswer* out) override {
    std::vector<float> values;
    std::size_t each = 0;
    if (auto fault = vectors(answer, &values, &each)) return fault;
    const bool typed = typed_ || api_ == 2;
    auto& body = out->body;
    body = "{\"id\":" + dumped("embed-" + std::string(answer.id())) + ",\"response_type\":\"embeddings_" +
           (typed ? "by_type" : "floats") + "\",\"embeddings\":";
    body += typed ? "{" : "";
    for (std::size_t i = 0; i < types_.size(); ++i) {
      const auto& type = types_[i];
      if (i != 0) body += ',';
      if (typed) body += '"' + std::string(type.base64 ? "base64" : kNames[static_cast<int>(type.kind)]) + "\":";
      for (std::size_t at = 0; at < values.size(); at += each) {
        body += at == 0 ? '[' : ',';
        if (type.base64) {
          append_vector_base64(type.kind, values.data() + at, each, &body);
        } else {
          append_vector(type.kind, values.data() + at, each, &body);
        }
      }
      body += ']';
    }
    body += std::string(typed ? "}" : "") + ",\"texts\":" + dumped(inputs_.texts);
    const auto tokens = std::to_string(tokens_);
    body += R"(,"meta":{"api_version":{"version":")" + std::to_string(api_) + R"("},"billed_units":{"input_tokens":)" +
            tokens + R"(},"tokens":{"input_tokens":)" + tokens + "}}}";
    return {};
  }

 private:
  struct Type {
    VectorKind kind = VectorKind::kFloat;
    bool base64 = false;
    bool operator==(const Type&) const = default;
  };
  // [{"content": [{"type": "text", "text": "..."}, ...]}, ...]: a vector of each, its texts as lines of one.
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

  static constexpr const char* kNames[] = {"float", "ubinary", "binary"};

  const int api_;
  std::vector<Type> types_{Type{}};
  bool typed_ = false;  // the kinds are named
};

class TeiEmbed final : public Vectors {
 public:
  TeiEmbed() : Vectors(Dialect::kTei) {}

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    return read_vectors(from, body, "inputs", true);
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
    if (!inputs->contains("source_sentence")) return invalid("inputs: source_sentence is missing");
    if (auto fault = read_text(*inputs, "source_sentence", &source)) return fault;
    const auto sentences = inputs->find("sentences");
    if (sentences == inputs->end()) return invalid("inputs: sentences is missing");
    if (auto fault = read_texts(*sentences, "sentences", true, &inputs_.texts)) return fault;
    const auto parameters = body.find("parameters");
    if (parameters != body.end() && parameters->is_object()) {
      const json wishes = std::move(*parameters);  // they may name a field `parameters` themselves
      body.update(wishes);
    }
    return read_vectors(from, body, nullptr, true);
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
  [[nodiscard]] bool fits(const ModelSpec& model) const override { return model.vector_output(true) >= 0; }
  [[nodiscard]] std::optional<std::size_t> characters() const override { return inputs_.characters(); }

  MaybeFault read(const ApiBody& from) override {
    json body;
    if (auto fault = parse_object(from.bytes, &body)) return fault;
    if (auto fault = read_inputs(body, "inputs", true, &inputs_)) return fault;
    if (auto fault = read_text(body, "model", &model_)) return fault;
    if (auto fault = read_wishes(body, from.auto_truncate, &wishes_)) return fault;
    if (wishes_.truncate == "CHUNK") return invalid("truncate CHUNK is for embeddings of texts, not of tokens");
    return {};
  }

  MaybeFault ask(const ModelSpec& model, std::size_t most_rows, inference::ModelInferRequest* out) override {
    const OutputSpec* spec = nullptr;
    if (auto fault = ask_output(model, true, out, &spec)) return fault;
    if (auto fault = check_rows(inputs_.rows(), most_rows)) return fault;
    if (inputs_.ids.empty()) {
      std::string_view prompt;
      if (auto fault = find_prompt(model, wishes_.prompt, wishes_.input_type, &prompt)) return fault;
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
std::unique_ptr<ApiTask> make_cohere_embed_v1() { return std::make_unique<CohereEmbed>(1); }
std::unique_ptr<ApiTask> make_cohere_embed_v2() { return std::make_unique<CohereEmbed>(2); }
std::unique_ptr<ApiTask> make_tei_embed() { return std::make_unique<TeiEmbed>(); }
std::unique_ptr<ApiTask> make_tei_embed_all() { return std::make_unique<TeiEmbedAll>(); }
std::unique_ptr<ApiTask> make_tei_similarity() { return std::make_unique<TeiSimilarity>(); }

}  // namespace arlo::gateway
