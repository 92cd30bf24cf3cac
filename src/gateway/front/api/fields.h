// Reads the JSON body of a request field by field, and describes errors in it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/front/api/common.h"

namespace arlo::gateway {

// Fields are read in turn; the target stays unchanged if a field is missing or null. The first invalid field makes the
// fault, INVALID_ARGUMENT; later fields are ignored.
class Fields {
 public:
  using json = nlohmann::json;
  // Parses an object with bounded nesting.
  explicit Fields(std::string_view bytes);
  // Reads a nested object, which must outlive it.
  explicit Fields(const json& object) : body_(&object) {}
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  Fields& flag(const char* name, bool* out);
  Fields& text(const char* name, std::string* out);
  // Reads a whole number of at least `least`.
  Fields& count(const char* name, std::int64_t least, std::int64_t* out);
  // Reads a required text or non-empty list of texts.
  Fields& texts(const char* name, std::vector<std::string>* out);
  // Reads `truncate`, `truncation_direction`, `prompt_name`, `input_type`, `priority`, `add_special_tokens` and vLLM's
  // `truncate_prompt_tokens` and `truncation_side`; for pipelines `utility`, `min_accuracy`, `pin` and `tenant`. `cut`:
  // the default is CUT.
  Fields& wishes(bool cut, TextWishes* out);
  // Reads `prompt_name` only.
  Fields& prompt(TextWishes* out);

  // Merges the fields of this object field, if it is one, into the body; they override existing fields.
  void merge(const char* name);

  // Returns a field unchanged; null: it is missing, which is a fault for a `needed` one.
  [[nodiscard]] const json* find(const char* name) const;
  [[nodiscard]] const json* needed(const char* name);
  [[nodiscard]] bool has(const char* name) const { return find(name) != nullptr; }
  // Like find(), but also null for a JSON null and after a fault.
  [[nodiscard]] const json* given(const char* name) const;
  [[nodiscard]] const MaybeFault& fault() const { return fault_; }

 private:
  Fields& fail(const char* name, const std::string& why);
  Fields& number(const char* name, const char* most, std::optional<double>* out);
  void read_cut(TextWishes* out);

  json own_;
  const json* body_ = &own_;
  MaybeFault fault_;
};

// Reads a non-empty list of texts. `empty`: a text may be empty.
MaybeFault read_texts(const nlohmann::json& from, const std::string& field, bool empty, std::vector<std::string>* out);

// Whether it is a whole number that fits an int64.
bool whole(const nlohmann::json& value);

// Parses JSON text. The library's reader takes a hundred instructions per character, which was a third of the cost of a
// short text. This one accepts the same texts, except for a NUL after the value.
enum class JsonRead { kOk, kWrong, kTooDeep, kTooMany };

// Reads one value in UTF-8, surrounded only by white space, with arrays and objects nested at most `deepest` deep. The
// last of equal keys counts. Values of two or three bytes each take forty times that, so their memory is bounded.
JsonRead read_json(std::string_view text, std::size_t deepest, nlohmann::json* out);

}  // namespace arlo::gateway
