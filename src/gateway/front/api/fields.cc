#include "gateway/front/api/fields.h"

#include <utility>

#include "gateway/front/api/task.h"
#include "rewrite/model.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

constexpr std::size_t kDeepest = 16;  // for requests: a three-dimensional tensor nests four deep

}  // namespace

Fields::Fields(std::string_view bytes) {
  const auto read = read_json(bytes, kDeepest, &own_);
  if (read == JsonRead::kTooDeep) {
    fault_ = unreadable("the body is not JSON of this API: it nests too deep");
  } else if (read == JsonRead::kTooMany) {
    fault_ = unreadable("the body has too many values: send fewer rows at a time");
  } else if (read != JsonRead::kOk) {
    fault_ = unreadable("the body is not JSON in UTF-8");
  } else if (!own_.is_object()) {
    fault_ = invalid("the body is no JSON object");
  }
}

Fields& Fields::fail(const char* name, const std::string& why) {
  fault_ = invalid(name + why);
  return *this;
}

const json* Fields::find(const char* name) const {
  const auto found = body_->find(name);
  return found == body_->end() ? nullptr : &*found;
}

const json* Fields::needed(const char* name) {
  const json* found = find(name);
  if (found == nullptr) fail(name, " is missing");
  return found;
}

const json* Fields::given(const char* name) const {
  const json* found = fault_ ? nullptr : find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

void Fields::merge(const char* name) {
  const auto found = own_.find(name);
  if (found == own_.end() || !found->is_object()) return;
  const json inner = std::move(*found);  // it may contain this field itself
  own_.update(inner);
}

Fields& Fields::flag(const char* name, bool* out) {
  const json* found = given(name);
  if (found == nullptr) return *this;
  if (!found->is_boolean()) return fail(name, " must be true or false");
  *out = found->get<bool>();
  return *this;
}

Fields& Fields::text(const char* name, std::string* out) {
  const json* found = given(name);
  if (found == nullptr) return *this;
  if (!found->is_string()) return fail(name, " must be a text");
  *out = found->get<std::string>();
  return *this;
}

Fields& Fields::count(const char* name, std::int64_t least, std::int64_t* out) {
  const json* found = given(name);
  if (found == nullptr) return *this;
  if (!whole(*found) || found->get<std::int64_t>() < least) {
    return fail(name, " must be a whole number of " + std::to_string(least) + " or more");
  }
  *out = found->get<std::int64_t>();
  return *this;
}

// `most`: the bound as text.
Fields& Fields::number(const char* name, const char* most, std::optional<double>* out) {
  const json* found = given(name);
  if (found == nullptr) return *this;
  if (!found->is_number() || *found < 0 || *found > std::stod(most)) {
    return fail(name, std::string(" must be a number of 0 to ") + most);
  }
  *out = found->get<double>();
  return *this;
}

Fields& Fields::texts(const char* name, std::vector<std::string>* out) {
  const json* found = fault_ ? nullptr : needed(name);
  if (found == nullptr) return *this;
  if (found->is_string()) {
    out->push_back(found->get<std::string>());
  } else {
    fault_ = read_texts(*found, name, true, out);
  }
  return *this;
}

Fields& Fields::wishes(bool cut, TextWishes* out) {
  if (out->truncate.empty()) out->truncate = cut ? "CUT" : "NONE";
  read_cut(out);
  if (const json* found = given("priority")) {
    // Cohere and vLLM use numbers: 0 is the default, and higher ones wait.
    if (*found != "bulk" && *found != "interactive" && !found->is_number_integer()) {
      return fail("priority", " must be interactive or bulk, or a whole number: above 0 is bulk");
    }
    out->bulk = *found == "bulk" || (found->is_number_integer() && *found > 0);
  }
  number("utility", "1e9", &out->utility).number("min_accuracy", "1", &out->min_accuracy);
  text("pin", &out->pin).text("tenant", &out->tenant).flag("add_special_tokens", &out->special);
  text("input_type", &out->input_type);
  if (!fault_) fault_ = check_input_type(out->input_type);
  return prompt(out);
}

Fields& Fields::prompt(TextWishes* out) {
  return given("prompt_name") == nullptr ? *this : text("prompt_name", &out->prompt.emplace());
}

void Fields::read_cut(TextWishes* out) {
  const char* const side_field = given("truncation_direction") != nullptr ? "truncation_direction" : "truncation_side";
  const json* side = given(side_field);
  const bool left = side != nullptr && (*side == "left" || *side == "Left");
  if (side != nullptr && !left && *side != "right" && *side != "Right") {
    fail(side_field, " must be left or right");
  }
  if (const json* found = given("truncate")) {
    std::string name = found->is_string() ? found->get<std::string>() : std::string();
    for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    if (name == "NONE" || name == "START" || name == "END" || name == "CHUNK") {
      out->truncate = name;
    } else if (found->is_boolean()) {
      out->truncate = found->get<bool>() ? "CUT" : "NONE";
    } else {
      fail("truncate", " must be true or false, or NONE, START, END or CHUNK");
    }
  }
  if (const json* found = given("truncate_prompt_tokens")) {
    const bool good = whole(*found) && *found >= -1 && *found != 0;
    if (!good) fail("truncate_prompt_tokens", " must be a number of tokens, or -1 for all that the model takes");
    if (out->truncate != "CHUNK") out->truncate = "CUT";
    if (good && *found > 0) out->most_tokens = found->get<std::int64_t>();
  }
  if (out->truncate == "CUT" && side != nullptr) out->truncate = left ? "START" : "END";
}

MaybeFault read_texts(const json& from, const std::string& field, bool empty, std::vector<std::string>* out) {
  if (from.is_array() && from.empty()) return nothing_in(field + " must be a list of texts, and not empty");
  if (!from.is_array()) return invalid(field + " must be a list of texts, and not empty");
  out->reserve(out->size() + from.size());
  for (const auto& text : from) {
    if (!text.is_string()) return invalid(field + ": it is a list of texts, and one of them is none");
    if (!empty && text.get_ref<const std::string&>().empty()) return invalid(field + ": a text is empty");
    out->push_back(text.get<std::string>());
  }
  return {};
}

MaybeFault ApiTask::read(const ApiBody& from) {
  Fields in(from.bytes);
  return in.fault() ? in.fault() : read_fields(in, from);
}

bool whole(const json& value) {
  return value.is_number_unsigned() ? value.get<std::uint64_t>() <= INT64_MAX : value.is_number_integer();
}

}  // namespace arlo::gateway
