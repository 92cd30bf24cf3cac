#include "gateway/front/embeddings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/utf8.h"
#include "kserve.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

MaybeFault read_ids(const json& from, std::vector<std::int64_t>* out) {
  for (const auto& id : from) {
    if (!id.is_number_integer()) return invalid("input: token ids are whole numbers, not beside anything else");
    out->push_back(id.get<std::int64_t>());
  }
  if (out->empty()) return invalid("input: a list of token ids is empty");
  return {};
}

MaybeFault read_inputs(const json& from, std::string_view field, EmbeddingsRequest* out) {
  const std::string name(field);
  if (from.is_string()) {
    out->texts.push_back(from.get<std::string>());
  } else if (!from.is_array() || from.empty()) {
    return invalid(name + " must be a text, a list of texts, or token ids; and not empty");
  } else if (from.front().is_number()) {
    if (auto fault = read_ids(from, &out->ids.emplace_back())) return fault;
  } else if (from.front().is_array()) {
    for (const auto& row : from) {
      if (!row.is_array()) return invalid(name + ": token ids are lists of numbers, not beside anything else");
      if (auto fault = read_ids(row, &out->ids.emplace_back())) return fault;
    }
  } else {
    for (const auto& text : from) {
      if (!text.is_string()) return invalid(name + ": it is a list of texts, and one of them is none");
      out->texts.push_back(text.get<std::string>());
    }
  }
  if (std::any_of(out->texts.begin(), out->texts.end(), [](const auto& text) { return text.empty(); })) {
    return invalid(name + ": a text is empty");
  }
  return {};
}

MaybeFault read_bool(const json& body, const char* field, bool* out) {
  const auto found = body.find(field);
  if (found == body.end() || found->is_null()) return {};
  if (!found->is_boolean()) return invalid(std::string(field) + " must be true or false");
  *out = found->get<bool>();
  return {};
}

MaybeFault read_truncate(const json& body, EmbeddingsRequest* out) {
  const auto found = body.find("truncate");
  if (found == body.end() || found->is_null()) return {};
  if (found->is_string() && (*found == "NONE" || *found == "START" || *found == "END")) {
    out->truncate = found->get<std::string>();
    return {};
  }
  if (!found->is_boolean()) return invalid("truncate must be true or false, or NONE, START or END");
  const auto side = body.find("truncation_direction");
  const bool left = side != body.end() && (*side == "left" || *side == "Left");
  out->truncate = !found->get<bool>() ? "NONE" : left ? "START" : "END";
  return {};
}

// The output that is a vector for each row: the one named so, or the only one.
int output_of(const ModelSpec& model) {
  int only = -1;
  for (std::size_t i = 0; i < model.outputs.size(); ++i) {
    const auto& output = model.outputs[i];
    if (output.token_level || output.datatype != "FP32" || output.dims.size() != 1 || (model.inner >> i & 1) != 0) {
      continue;
    }
    if (output.name == "sentence_embedding") return static_cast<int>(i);
    if (output.name == "logits") continue;
    only = only == -1 ? static_cast<int>(i) : -2;
  }
  return std::max(only, -1);
}

void add_row(inference::ModelInferRequest& request, const InputSpec& spec,
             const std::vector<std::vector<std::int64_t>>& ids, std::size_t width, bool mask) {
  auto* tensor = request.add_inputs();
  tensor->set_name(spec.name);
  tensor->set_datatype(spec.datatype);
  tensor->add_shape(static_cast<std::int64_t>(ids.size()));
  tensor->add_shape(static_cast<std::int64_t>(width));
  std::string raw(ids.size() * width * spec.item, '\0');
  for (std::size_t row = 0; row < ids.size(); ++row) {
    for (std::size_t i = 0; i < ids[row].size(); ++i) {
      const std::int64_t value = mask ? 1 : ids[row][i];
      std::memcpy(raw.data() + (row * width + i) * spec.item, &value, spec.item);
    }
  }
  request.add_raw_input_contents(std::move(raw));
}

void append_base64(std::string_view bytes, std::string* out) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out->push_back(i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63]);
    }
  }
}

void append_floats(const std::vector<float>& values, std::string* out) {
  char digits[32];
  out->push_back('[');
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != 0) out->push_back(',');
    if (std::isfinite(values[i])) {
      out->append(digits, std::to_chars(digits, digits + sizeof digits, values[i]).ptr);
    } else {
      out->append("null");  // JSON has no word for it
    }
  }
  out->push_back(']');
}

void normalize(std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  if (sum == 0) return;
  const double by = 1 / std::sqrt(sum);
  for (float& value : values) value = static_cast<float>(value * by);
}

}  // namespace

MaybeFault read_embeddings(Dialect dialect, std::string_view text, EmbeddingsRequest* out) {
  const auto body = json::parse(text, nullptr, false);
  if (body.is_discarded()) return invalid("the body is not JSON in UTF-8");
  if (!body.is_object()) return invalid("the body is no JSON object");
  out->dialect = dialect;
  const char* field = dialect == Dialect::kTei ? "inputs" : "input";
  const auto inputs = body.find(field);
  if (inputs == body.end()) return invalid(std::string(field) + " is missing");
  if (auto fault = read_inputs(*inputs, field, out)) return fault;
  const auto model = body.find("model");
  if (model != body.end() && model->is_string()) out->model = model->get<std::string>();
  if (dialect == Dialect::kOpenAi && out->model.empty()) return invalid("model is missing");
  const auto format = body.find("encoding_format");
  if (format != body.end() && !format->is_null()) {
    if (*format != "float" && *format != "base64") return invalid("encoding_format must be float or base64");
    out->base64 = *format == "base64";
  }
  const auto dimensions = body.find("dimensions");
  if (dimensions != body.end() && !dimensions->is_null()) {
    if (!dimensions->is_number_integer() || dimensions->get<std::int64_t>() < 1) {
      return invalid("dimensions must be a whole number of 1 or more");
    }
    out->dimensions = dimensions->get<std::size_t>();
  }
  if (auto fault = read_bool(body, "normalize", &out->normalize)) return fault;
  return read_truncate(body, out);
}

MaybeFault infer_request(const EmbeddingsRequest& request, const ModelSpec& model, std::size_t max_rows,
                         std::string* out) {
  const int output = output_of(model);
  if (output < 0) {
    return invalid("model '" + model.name + "' gives no embedding of a text: it has no output sentence_embedding");
  }
  const auto& spec = model.outputs[static_cast<std::size_t>(output)];
  if (spec.dims[0] >= 0 && request.dimensions > static_cast<std::size_t>(spec.dims[0])) {
    return invalid("dimensions: model '" + model.name + "' has " + std::to_string(spec.dims[0]));
  }
  const std::size_t rows = std::max(request.texts.size(), request.ids.size());
  if (rows > max_rows) {
    return invalid("input has " + std::to_string(rows) + " rows; 1 to " + std::to_string(max_rows) +
                   " are taken in one request");
  }
  inference::ModelInferRequest made;
  made.set_model_name(model.name);
  made.add_outputs()->set_name(spec.name);
  if (!request.ids.empty()) {
    std::size_t width = 0;
    for (const auto& row : request.ids) width = std::max(width, row.size());
    if (width > static_cast<std::size_t>(model.longest)) {
      return invalid("input has " + std::to_string(width) + " token ids in one row; model '" + model.name +
                     "' takes 1 to " + std::to_string(model.longest));
    }
    const auto& ids = model.inputs[model.ids];
    for (const auto& row : request.ids) {
      if (model.mask < 0 && row.size() != width) {
        return invalid("input: model '" + model.name + "' has no attention mask, so all must be of one length");
      }
      if (ids.item == 4 &&
          std::any_of(row.begin(), row.end(), [](auto id) { return id != static_cast<std::int32_t>(id); })) {
        return invalid("input: a token id is none of the model's");
      }
    }
    add_row(made, ids, request.ids, width, false);
    if (model.mask >= 0) add_row(made, model.inputs[static_cast<std::size_t>(model.mask)], request.ids, width, true);
  } else {
    (*made.mutable_parameters())["truncate"].set_string_param(request.truncate);
    auto* tensor = made.add_inputs();
    tensor->set_name(std::string(kText));
    tensor->set_datatype("BYTES");
    tensor->add_shape(static_cast<std::int64_t>(request.texts.size()));
    std::string raw;
    for (const auto& text : request.texts) {
      const auto size = static_cast<std::uint32_t>(text.size());
      raw.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
    }
    made.add_raw_input_contents(std::move(raw));
  }
  *out = made.SerializeAsString();
  return {};
}

MaybeFault write_embeddings(const EmbeddingsRequest& request, const ModelSpec& model, const std::string& bytes,
                            std::string* out) {
  inference::ModelInferResponse response;
  const auto rows = std::max(request.texts.size(), request.ids.size());
  if (!response.ParseFromString(bytes) || response.raw_output_contents_size() != 1) {
    return Fault{Code::kInternal, "the worker's answer is no embedding"};
  }
  const std::string& raw = response.raw_output_contents(0);
  const std::size_t have = raw.size() / sizeof(float) / rows;
  if (have == 0 || raw.size() != have * rows * sizeof(float) || request.dimensions > have) {
    return Fault{Code::kInternal, "the worker's answer has vectors of " + std::to_string(have) + " numbers"};
  }
  const bool openai = request.dialect == Dialect::kOpenAi;
  std::vector<float> values;
  *out = openai ? "{\"object\":\"list\",\"data\":[" : "[";
  for (std::size_t row = 0; row < rows; ++row) {
    values.resize(have);
    std::memcpy(values.data(), raw.data() + row * have * sizeof(float), have * sizeof(float));
    if (request.dimensions != 0) values.resize(request.dimensions);
    if (request.normalize) normalize(values);
    if (row != 0) out->push_back(',');
    if (openai) *out += "{\"object\":\"embedding\",\"index\":" + std::to_string(row) + ",\"embedding\":";
    if (request.base64) {
      out->push_back('"');
      append_base64({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}, out);
      out->push_back('"');
    } else {
      append_floats(values, out);
    }
    if (openai) out->push_back('}');
  }
  if (!openai) {
    out->push_back(']');
    return {};
  }
  std::uint64_t tokens = 0;
  for (const auto& row : request.ids) tokens += row.size();
  const auto said = response.parameters().find("tokens");
  if (said != response.parameters().end()) tokens = static_cast<std::uint64_t>(said->second.int64_param());
  const auto count = std::to_string(tokens);
  *out += "],\"model\":" + dumped(model.name) + ",\"usage\":{\"prompt_tokens\":" + count +
          ",\"total_tokens\":" + count + "}}";
  return {};
}

int status_of(Dialect dialect, Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kUnimplemented:
      return dialect == Dialect::kTei ? 422 : 400;
    case Code::kUnauthenticated:
      return 401;
    case Code::kNotFound:
      return 404;
    case Code::kResourceExhausted:
      return 429;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    default:
      return dialect == Dialect::kTei ? 424 : 500;
  }
}

std::string write_fault(Dialect dialect, const Fault& fault) {
  const int status = status_of(dialect, fault.code);
  const std::string message = valid_utf8(fault.message) ? fault.message : printable(fault.message);
  if (dialect == Dialect::kTei) {
    const char* type = status == 422   ? "Validation"
                       : status == 429 ? "Overloaded"
                       : status == 503 ? "Unhealthy"
                                       : "Backend";
    return dumped(json::object({{"error", message}, {"error_type", type}}));
  }
  const char* type = status == 401   ? "authentication_error"
                     : status == 404 ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status < 500  ? "invalid_request_error"
                                     : "server_error";
  const json said = json::object({{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}});
  return dumped(json::object({{"error", said}}));
}

}  // namespace arlo::gateway
