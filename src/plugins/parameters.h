// The parameters of a model in config.pbtxt; all values are string_value.
#ifndef ARLO_PLUGINS_PARAMETERS_H_
#define ARLO_PLUGINS_PARAMETERS_H_

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace arlo::triton {

// All of the text as a number from `least` to `most`; empty: it is none.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = error == std::errc() && end == text.data() + text.size();
  return all && value >= least && value <= most ? std::optional<Number>(value) : std::nullopt;  // NaN is not
}

// Throws std::invalid_argument with the parameter's name. A parameter that is never read is an error.
class Parameters {
 public:
  // Of a model configuration as Triton gives it.
  explicit Parameters(const nlohmann::json& root) : all_(root.value("parameters", nlohmann::json::object())) {}

  std::string Text(const std::string& name, const std::string& otherwise) {
    known_.insert(name);
    if (!all_.contains(name)) return otherwise;
    return all_.at(name).at("string_value").get<std::string>();
  }

  template <typename Number>
  Number Value(const std::string& name, Number otherwise, Number least, Number most) {
    const std::string text = Text(name, std::to_string(otherwise));
    if (const auto value = ParseNumber(text, least, most)) return *value;
    throw std::invalid_argument("parameter " + name + ": '" + text + "' is not a " +
                                (std::is_integral_v<Number> ? "whole number" : "number") + " from " +
                                std::to_string(least) + " to " + std::to_string(most));
  }

  bool Flag(const std::string& name) {
    const std::string text = Text(name, "false");
    if (text == "true" || text == "false") return text == "true";
    throw std::invalid_argument("parameter " + name + ": '" + text + "' is neither true nor false");
  }

  // After all that there are have been read.
  void CheckNames() const {
    for (const auto& [name, value] : all_.items()) {
      if (known_.contains(name)) continue;
      std::string problem = "unknown parameter " + name + "; there are";
      for (const auto& each : known_) problem.append(each == *known_.begin() ? " " : ", ").append(each);
      throw std::invalid_argument(problem);
    }
  }

 private:
  nlohmann::json all_;
  std::set<std::string> known_;
};

}  // namespace arlo::triton

#endif  // ARLO_PLUGINS_PARAMETERS_H_
