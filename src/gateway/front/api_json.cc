#include "gateway/front/api_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

constexpr std::size_t kDeepest = 16;  // of requests: three dimensions of a tensor are four

bool too_deep(std::string_view text) {
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

const json* field_of(const json& body, const char* field) {
  const auto found = body.find(field);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

MaybeFault parse_object(std::string_view text, json* out) {
  if (too_deep(text)) return invalid("the body is not JSON of this API: it nests too deep");
  *out = json::parse(text, nullptr, false);
  if (out->is_discarded()) return invalid("the body is not JSON in UTF-8");
  if (!out->is_object()) return invalid("the body is no JSON object");
  return {};
}

bool whole(const json& value) {
  return value.is_number_unsigned() ? value.get<std::uint64_t>() <= INT64_MAX : value.is_number_integer();
}

MaybeFault read_bool(const json& body, const char* field, bool* out) {
  const json* found = field_of(body, field);
  if (found == nullptr) return {};
  if (!found->is_boolean()) return invalid(std::string(field) + " must be true or false");
  *out = found->get<bool>();
  return {};
}

MaybeFault read_text(const json& body, const char* field, std::string* out) {
  const json* found = field_of(body, field);
  if (found == nullptr) return {};
  if (!found->is_string()) return invalid(std::string(field) + " must be a text");
  *out = found->get<std::string>();
  return {};
}

MaybeFault read_count(const json& body, const char* field, std::int64_t least, std::int64_t* out) {
  const json* found = field_of(body, field);
  if (found == nullptr) return {};
  if (!whole(*found) || found->get<std::int64_t>() < least) {
    return invalid(std::string(field) + " must be a whole number of " + std::to_string(least) + " or more");
  }
  *out = found->get<std::int64_t>();
  return {};
}

MaybeFault read_texts(const json& from, const std::string& field, std::vector<std::string>* out) {
  if (!from.is_array() || from.empty()) return invalid(field + " must be a list of texts, and not empty");
  out->reserve(from.size());
  for (const auto& text : from) {
    if (!text.is_string()) return invalid(field + ": it is a list of texts, and one of them is none");
    if (text.get_ref<const std::string&>().empty()) return invalid(field + ": a text is empty");
    out->push_back(text.get<std::string>());
  }
  return {};
}

MaybeFault read_wishes(const json& body, TextWishes* out) {
  if (const json* found = field_of(body, "truncate")) {
    const bool named = found->is_string();
    std::string name = named ? found->get<std::string>() : std::string();
    for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    if (named && (name == "NONE" || name == "START" || name == "END" || name == "CHUNK")) {
      out->truncate = name;
    } else if (found->is_boolean()) {
      const json* side = field_of(body, "truncation_direction");
      const bool left = side != nullptr && (*side == "left" || *side == "Left");
      out->truncate = !found->get<bool>() ? "NONE" : left ? "START" : "END";
    } else {
      return invalid("truncate must be true or false, or NONE, START, END or CHUNK");
    }
  }
  if (const json* found = field_of(body, "priority")) {
    // Cohere's and vLLM's are numbers, of which 0 is the usual and higher ones wait.
    if (*found == "bulk" || (found->is_number_integer() && *found > 0)) {
      out->bulk = true;
    } else if (*found != "interactive" && !found->is_number_integer()) {
      return invalid("priority must be interactive or bulk, or a whole number: above 0 is bulk");
    }
  }
  return read_text(body, "prompt_name", &out->prompt);
}

MaybeFault find_prompt(const ModelSpec& model, const TextWishes& wishes, std::string_view* out) {
  if (wishes.prompt.empty()) return {};
  std::string names;
  for (const auto& [name, text] : model.prompts) {
    if (name == wishes.prompt) {
      *out = text;
      return {};
    }
    names += (names.empty() ? "it has " : ", ") + arlo::quoted(name);
  }
  return invalid("prompt_name: model '" + model.name + "' has no prompt " + arlo::quoted(wishes.prompt) + "; " +
                 (names.empty() ? "it has none" : names));
}

void add_wishes(const TextWishes& wishes, bool cut, inference::ModelInferRequest* out) {
  auto& parameters = *out->mutable_parameters();
  if (cut) parameters["truncate"].set_string_param(wishes.truncate);
  if (wishes.bulk) parameters["arlo_class"].set_string_param("bulk");
}

MaybeFault check_made(std::size_t bytes) {
  if (bytes <= kMostMade) return {};
  return invalid("input: its rows make a tensor of " + std::to_string(bytes) + " bytes, above " +
                 std::to_string(kMostMade) + ": send fewer rows at a time, or shorter ones");
}

MaybeFault add_texts(std::string_view name, std::string_view prompt, const std::vector<std::string>& texts,
                     inference::ModelInferRequest* out) {
  std::size_t bytes = 0;
  for (const auto& text : texts) bytes += sizeof(std::uint32_t) + prompt.size() + text.size();
  if (auto fault = check_made(bytes)) return fault;
  auto* tensor = out->add_inputs();
  tensor->set_name(std::string(name));
  tensor->set_datatype("BYTES");
  tensor->add_shape(static_cast<std::int64_t>(texts.size()));
  std::string raw;
  raw.reserve(bytes);
  for (const auto& text : texts) {
    const auto size = static_cast<std::uint32_t>(prompt.size() + text.size());
    raw.append(reinterpret_cast<const char*>(&size), sizeof size).append(prompt).append(text);
  }
  out->add_raw_input_contents(std::move(raw));
  return {};
}

MaybeFault check_rows(std::size_t rows, std::size_t most) {
  if (rows >= 1 && rows <= most) return {};
  return invalid("input has " + std::to_string(rows) + " rows; 1 to " + std::to_string(most) +
                 " are taken in one request");
}

void append_float(float value, std::string* out) {
  char digits[32];
  if (std::isfinite(value)) {
    out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  } else {
    out->append("null");  // JSON has no word for it
  }
}

void append_floats(const float* values, std::size_t count, std::string* out) {
  out->push_back('[');
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) out->push_back(',');
    append_float(values[i], out);
  }
  out->push_back(']');
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

MaybeFault read_rows(const inference::ModelInferResponse& answer, std::size_t rows, std::vector<float>* values,
                     std::size_t* each) {
  if (answer.raw_output_contents_size() != 1) return Fault{Code::kInternal, "the worker's answer is not one output"};
  const std::string& raw = answer.raw_output_contents(0);
  *each = rows == 0 ? 0 : raw.size() / sizeof(float) / rows;
  if (*each == 0 || raw.size() != *each * rows * sizeof(float)) {
    return Fault{Code::kInternal, "the worker's answer has " + std::to_string(raw.size()) + " bytes for " +
                                      std::to_string(rows) + " rows"};
  }
  values->resize(*each * rows);
  std::memcpy(values->data(), raw.data(), raw.size());
  return {};
}

std::int64_t said(const inference::ModelInferResponse& answer, const char* name) {
  const auto found = answer.parameters().find(name);
  return found == answer.parameters().end() ? 0 : found->second.int64_param();
}

std::string usage_of(std::int64_t tokens) {
  const auto count = std::to_string(tokens);
  return "{\"prompt_tokens\":" + count + ",\"total_tokens\":" + count + "}";
}

int status_of(Dialect dialect, Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
      return dialect == Dialect::kTei ? 422 : 400;
    case Code::kUnimplemented:  // not what this model, or this server, is for
      return dialect == Dialect::kTei ? 424 : dialect == Dialect::kKserve ? 501 : 400;
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
  if (dialect == Dialect::kCohere) return dumped(json::object({{"message", message}}));
  if (dialect == Dialect::kKserve) return dumped(json::object({{"error", message}}));
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
  const json object = json::object({{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}});
  return dumped(json::object({{"error", object}}));
}

}  // namespace arlo::gateway
