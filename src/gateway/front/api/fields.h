// The JSON body of a request, read field by field, with words for what is wrong in it. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/front/api/common.h"

namespace arlo::gateway {

// Fields are read in turn, into what stays as it is where a field is missing or null. The first one that is wrong makes
// the fault, INVALID_ARGUMENT; those behind it are not looked at.
class Fields {
 public:
  using json = nlohmann::json;
  // An object that nests no deeper than any request has to.
  explicit Fields(std::string_view bytes);
  // One within another, which must outlive it.
  explicit Fields(const json& object) : body_(&object) {}
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  Fields& flag(const char* name, bool* out);
  Fields& text(const char* name, std::string* out);
  // A whole number of at least `least`.
  Fields& count(const char* name, std::int64_t least, std::int64_t* out);
  // A text, or a list of texts that is not empty; it must be there.
  Fields& texts(const char* name, std::vector<std::string>* out);
  // From `truncate`, `truncation_direction`, `prompt_name`, `input_type`, `priority`, `add_special_tokens` and vLLM's
  // `truncate_prompt_tokens` and `truncation_side`; `utility`, `min_accuracy`, `pin` and `tenant` of pipelines. `cut`:
  // CUT where nothing is said.
  Fields& wishes(bool cut, TextWishes* out);
  // `prompt_name` alone.
  Fields& prompt(TextWishes* out);

  // What is within this field, if it is an object, beside what there is and in place of it.
  void merge(const char* name);

  // A field as it is; null: it is not there, which of `needed` ones is a fault.
  [[nodiscard]] const json* find(const char* name) const;
  [[nodiscard]] const json* needed(const char* name);
  [[nodiscard]] bool has(const char* name) const { return find(name) != nullptr; }
  // The same; null where it is null, too, and behind a fault.
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

// A list of texts that is not empty. `empty`: a text of it may be.
MaybeFault read_texts(const nlohmann::json& from, const std::string& field, bool empty, std::vector<std::string>* out);

// A whole number that an int64 holds.
bool whole(const nlohmann::json& value);

}  // namespace arlo::gateway
