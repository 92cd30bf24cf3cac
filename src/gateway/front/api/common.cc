#include "gateway/front/api/common.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

// The field at the start of our messages: `input: ...`, `dimensions must be ...`. Empty: none.
std::string_view field_named(std::string_view message) {
  const std::size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  if (end == std::string_view::npos) return {};
  const std::string_view rest = message.substr(end);
  const bool is_field = rest.starts_with(": ") || rest.starts_with(" must ") || rest.starts_with(" is missing");
  return is_field ? message.substr(0, end) : std::string_view();
}

}  // namespace

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::size_t count_characters_of(const std::vector<std::string>& texts) {
  std::size_t count = 0;
  for (const auto& text : texts) count += count_characters(text);
  return count;
}

MaybeFault check_of_scores(const ModelSpec& model, const TextWishes& wishes) {
  if (wishes.truncate == "CHUNK") return invalid("truncate CHUNK is for embeddings: use NONE, END or START");
  if (!wishes.special) return invalid("add_special_tokens: scores are of texts with their special tokens");
  if (wishes.most_tokens != 0 && wishes.most_tokens < model.longest) {
    return invalid("truncate_prompt_tokens: of scores it may be -1, or the " + std::to_string(model.longest) +
                   " tokens that model '" + model.name + "' takes");
  }
  return {};
}

void add_wishes(const TextWishes& wishes, bool cut, inference::ModelInferRequest* out) {
  auto& parameters = *out->mutable_parameters();
  if (cut && wishes.truncate == "CUT") {
    parameters["truncate"].set_bool_param(true);
  } else if (cut) {
    parameters["truncate"].set_string_param(wishes.truncate);
  }
  if (cut && wishes.prompt) parameters["prompt_name"].set_string_param(*wishes.prompt);
  if (cut && !wishes.input_type.empty()) parameters["input_type"].set_string_param(wishes.input_type);
  if (wishes.bulk) parameters["arlo_class"].set_string_param(*wishes.bulk ? "bulk" : "interactive");
  if (wishes.utility) parameters["utility"].set_double_param(*wishes.utility);
  if (wishes.min_accuracy) parameters["min_accuracy"].set_double_param(*wishes.min_accuracy);
  if (!wishes.pin.empty()) parameters["pin"].set_string_param(wishes.pin);
  if (!wishes.tenant.empty()) parameters["tenant"].set_string_param(wishes.tenant);
}

MaybeFault check_made(std::size_t bytes) {
  if (bytes <= kMostMade) return {};
  return invalid("input: its rows make a tensor of " + std::to_string(bytes) + " bytes, above " +
                 std::to_string(kMostMade) + ": send fewer rows at a time, or shorter ones");
}

MaybeFault add_texts(std::string_view name, std::string_view before, const std::vector<std::string>& texts,
                     inference::ModelInferRequest* out) {
  std::size_t bytes = 0;
  for (const auto& text : texts) bytes += sizeof(std::uint32_t) + before.size() + text.size();
  if (auto fault = check_made(bytes)) return fault;
  auto* tensor = out->add_inputs();
  tensor->set_name(std::string(name));
  tensor->set_datatype("BYTES");
  tensor->add_shape(static_cast<std::int64_t>(texts.size()));
  std::string raw;
  raw.reserve(bytes);
  for (const auto& text : texts) {
    const auto size = static_cast<std::uint32_t>(before.size() + text.size());
    raw.append(reinterpret_cast<const char*>(&size), sizeof size).append(before).append(text);
  }
  out->add_raw_input_contents(std::move(raw));
  return {};
}

MaybeFault check_rows(std::size_t rows, std::size_t most) {
  if (rows >= 1 && rows <= most) return {};
  return invalid("input has " + std::to_string(rows) + " rows; 1 to " + std::to_string(most) +
                 " are taken in one request");
}

template <class T>
MaybeFault check_finite(std::span<const T> values, std::size_t each, std::span<const std::size_t> pieces) {
  const auto finite = [](T value) { return std::isfinite(value); };
  if (std::ranges::all_of(values, finite)) return {};
  constexpr std::size_t kMostNamed = 8;
  std::string names;
  std::size_t found = 0;
  std::size_t row = 0;
  for (std::size_t input = 0; row * each < values.size(); ++input) {
    const std::size_t rows = pieces.empty() ? 1 : pieces[input];
    const auto own = values.subspan(row * each, rows * each);
    row += rows;
    if (std::ranges::all_of(own, finite)) continue;
    if (++found <= kMostNamed) names += (names.empty() ? "" : ", ") + std::to_string(input);
  }
  if (found > kMostNamed) names += " and " + std::to_string(found - kMostNamed) + " more";
  Fault fault{Code::kInternal, "the model's output is NaN or infinite for input " + names +
                                   " (counted from 0): check its weights, or compile it with --precision fp32; the "
                                   "other inputs can be sent without these"};
  fault.kind = Fault::Kind::kNotFinite;
  return fault;
}
template MaybeFault check_finite(std::span<const float>, std::size_t, std::span<const std::size_t>);
template MaybeFault check_finite(std::span<const double>, std::size_t, std::span<const std::size_t>);

MaybeFault read_rows(const inference::ModelInferResponse& answer, std::size_t rows, Rows* out,
                     std::span<const std::size_t> pieces) {
  if (answer.raw_output_contents_size() != 1) return Fault{Code::kInternal, "the worker's answer is not one output"};
  const std::string& raw = answer.raw_output_contents(0);
  out->each = rows == 0 ? 0 : raw.size() / sizeof(float) / rows;
  if (out->each == 0 || raw.size() != out->each * rows * sizeof(float)) {
    return Fault{Code::kInternal, "the worker's answer has " + std::to_string(raw.size()) + " bytes for " +
                                      std::to_string(rows) + " rows"};
  }
  out->values.resize(out->each * rows);
  std::memcpy(out->values.data(), raw.data(), raw.size());
  return check_finite<float>(out->values, out->each, pieces);
}

std::int64_t said(const inference::ModelInferResponse& answer, const char* name) {
  const auto found = answer.parameters().find(name);
  return found == answer.parameters().end() ? 0 : found->second.int64_param();
}

std::string usage_of(std::int64_t tokens) {
  const auto count = std::to_string(tokens);
  return "{\"prompt_tokens\":" + count + ",\"total_tokens\":" + count + "}";
}

int status_of(Dialect dialect, const Fault& fault) {
  switch (fault.code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
      return dialect == Dialect::kTei && fault.kind == Fault::Kind::kUsual ? 422 : 400;
    case Code::kUnimplemented:  // not supported by this model or server
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

std::string write_fault(Dialect dialect, const Fault& fault, std::string_view id) {
  const int status = status_of(dialect, fault);
  const std::string message = valid_utf8(fault.message) ? fault.message : printable(fault.message);
  if (dialect == Dialect::kCohere) return dumped(json::object({{"message", message}, {"id", id}}));
  if (dialect == Dialect::kKserve) return dumped(json::object({{"error", message}}));
  if (dialect == Dialect::kTei) {
    const char* type = fault.kind == Fault::Kind::kEmpty ? "Empty"
                       : status <= 422                   ? "Validation"
                       : status == 429                   ? "Overloaded"
                       : status == 503                   ? "Unhealthy"
                                                         : "Backend";
    return dumped(json::object({{"error", message}, {"error_type", type}}));
  }
  const char* type = status == 401   ? "authentication_error"
                     : status == 404 ? "not_found_error"
                     : status == 429 ? "rate_limit_error"
                     : status < 500  ? "invalid_request_error"
                                     : "server_error";
  json param = nullptr;
  json code = nullptr;
  if (status == 404 && fault.kind != Fault::Kind::kNoPath) {
    param = "model";
    code = "model_not_found";
  } else if (status == 401) {
    code = "invalid_api_key";
  } else if (const auto field = field_named(message); status < 429 && !field.empty()) {
    param = field;
  }
  const json object = json::object({{"message", message}, {"type", type}, {"param", param}, {"code", code}});
  return dumped(json::object({{"error", object}}));
}

}  // namespace arlo::gateway
