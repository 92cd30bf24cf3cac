#include "rewrite/model.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/utf8.h"

namespace arlo::gateway {

std::span<const std::string_view> prompts_for(std::string_view input_type) {
  static constexpr std::string_view kQuery[] = {"query", "search_query"};
  static constexpr std::string_view kPassage[] = {"passage", "document", "search_document"};
  static constexpr std::string_view kOther[] = {"classification", "clustering"};
  if (input_type == "query" || input_type == "search_query") return kQuery;
  if (input_type == "passage" || input_type == "document" || input_type == "search_document") return kPassage;
  const auto* const found = std::find(std::begin(kOther), std::end(kOther), input_type);
  return found == std::end(kOther) ? std::span<const std::string_view>() : std::span(found, 1);
}

MaybeFault check_input_type(std::string_view input_type) {
  if (input_type.empty() || !prompts_for(input_type).empty()) return {};
  return invalid("input_type: there is no " + quoted(input_type) +
                 "; query, passage, document, search_query, search_document, classification and clustering are");
}

MaybeFault find_prompt(const ModelSpec& model, std::optional<std::string_view> name, std::string_view input_type,
                       std::string_view* out) {
  const auto named = [&](std::string_view wanted) {
    const auto found =
        std::ranges::find(model.prompts, wanted, [](const auto& each) { return std::string_view(each.first); });
    if (found != model.prompts.end()) *out = found->second;
    return found != model.prompts.end();
  };
  if (!name) {
    const auto wanted = prompts_for(input_type);
    if (std::none_of(wanted.begin(), wanted.end(), named)) named(model.default_prompt);
    return {};
  }
  if (named(*name) || name->empty()) return {};
  std::string names;
  for (const auto& each : model.prompts) names += (names.empty() ? "it has " : ", ") + quoted(each.first);
  return invalid("prompt_name: model '" + model.name + "' has no prompt " + quoted(*name) + "; " +
                 (names.empty() ? "it has none" : names));
}

}  // namespace arlo::gateway
