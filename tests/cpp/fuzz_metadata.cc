// Any text of a header: libFuzzer over percent-encoding and grpc-timeout, beside plain readings of both.
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/grpc_message.h"

namespace {

using namespace arlo::transport;  // NOLINT(google-build-using-namespace): a program of one file

void need(bool what) {
  if (!what) std::abort();
}

bool is_digit(char c, int base) {
  return base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c >= '0' && c <= '9';
}

std::string decoded_plainly(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && is_digit(text[i + 1], 16) && is_digit(text[i + 2], 16)) {
      const char digits[] = {text[i + 1], text[i + 2], '\0'};
      out.push_back(static_cast<char>(std::strtol(digits, nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

void check_timeout(std::string_view text) {
  const auto read = parse_timeout(text);
  constexpr std::string_view kUnits = "HMSmun";
  constexpr arlo::TimeNs kNs[] = {3'600'000'000'000, 60'000'000'000, 1'000'000'000, 1'000'000, 1'000, 1};
  const std::size_t unit = text.empty() ? std::string_view::npos : kUnits.find(text.back());
  bool good = unit != std::string_view::npos && text.size() >= 2 && text.size() <= 9;
  for (std::size_t i = 0; good && i + 1 < text.size(); ++i) good = is_digit(text[i], 10);
  need(good == read.has_value());
  if (!good) return;
  const auto value = std::strtoll(std::string(text.substr(0, text.size() - 1)).c_str(), nullptr, 10);
  const auto exact = static_cast<__int128>(value) * kNs[unit];
  need(*read == exact || (exact > kLongestTimeout && *read <= kLongestTimeout && *read > kLongestTimeout - kNs[unit]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_timeout(text);
  need(arlo::percent_decoded(text) == decoded_plainly(text));
  const std::string encoded = percent_encoded(text);
  for (const char each : encoded) need(each >= ' ' && each <= '~');
  need(arlo::percent_decoded(encoded) == text);
  return 0;
}
