// append_float(), append_floats() and append_base64() of api_json.h, which dominate the cost of an answer with vectors.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "gateway/front/api/common.h"

namespace arlo::gateway {
namespace {

constexpr std::size_t kLongest = 32;  // maximum characters of a number
constexpr int kMostPower = 13;

constexpr std::array<char, 200> pairs_of_digits() {
  std::array<char, 200> made{};
  for (std::size_t i = 0; i < 100; ++i) {
    made[2 * i] = static_cast<char>('0' + i / 10);
    made[2 * i + 1] = static_cast<char>('0' + i % 10);
  }
  return made;
}
constexpr auto kPairs = pairs_of_digits();

constexpr std::array<double, kMostPower + 1> powers_of_ten() {
  std::array<double, kMostPower + 1> made{};
  double power = 1;
  for (auto& each : made) {
    each = power;
    power *= 10;
  }
  return made;
}
constexpr auto kPowers = powers_of_ten();

// Writes nine digits, which identify every FP32 number: of 10^9 decimals in a decade, the nearest is off by at most a
// sixth of half the distance to the next number, and the multiplication adds next to nothing. Null: out of range.
char* write_nine_digits(float value, char* to) {
  const double size = std::fabs(double{value});
  const bool fits = size >= 1e-4 && size < 10;  // false for NaN
  if (!fits) return nullptr;
  // The power of ten that scales it to nine digits.
  const int power = 8 + (size < 1 ? 1 : 0) + (size < 0.1 ? 1 : 0) + (size < 0.01 ? 1 : 0) + (size < 0.001 ? 1 : 0);
  const double whole = size * kPowers[static_cast<std::size_t>(power)];
  const auto digits = static_cast<std::uint32_t>(whole + 0.5);  // NOLINT(bugprone-incorrect-roundings): far below 2^52
  if (digits < 100'000'000 || digits > 999'999'999) return nullptr;  // at 1, 0.1, .., inexact in FP64
  char nine[10];
  std::uint32_t rest = digits;
  for (int at = 7; at >= 1; at -= 2) {
    std::memcpy(nine + at, &kPairs[static_cast<std::size_t>(rest % 100) * 2], 2);
    rest /= 100;
  }
  nine[0] = static_cast<char>('0' + rest);
  int count = 9;
  while (nine[count - 1] == '0') --count;
  if (value < 0) *to++ = '-';
  if (power == 8) {
    *to++ = nine[0];
    if (count > 1) *to++ = '.';
    std::memcpy(to, nine + 1, 8);
    return to + count - 1;
  }
  std::memcpy(to, "0.000", 5);  // NOLINT(bugprone-not-null-terminated-result)
  to += 2 + (power - 9);
  std::memcpy(to, nine, 9);
  return to + count;
}

// Writes nine digits, or the shortest decimal of a very small or large number. `to` has room for kLongest.
char* write_float(float value, char* to) {
  if (char* const end = write_nine_digits(value, to)) return end;
  if (std::isfinite(value)) return std::to_chars(to, to + kLongest, value).ptr;
  std::memcpy(to, "null", 4);  // NOLINT(bugprone-not-null-terminated-result): JSON has no word for it
  return to + 4;
}

}  // namespace

void append_float(float value, std::string* out) {
  char digits[kLongest];
  out->append(digits, write_float(value, digits));
}

void append_floats(const float* values, std::size_t count, std::string* out) {
  constexpr std::size_t kPart = 64;
  char part[kPart * (kLongest + 1)];
  out->push_back('[');
  for (std::size_t begin = 0; begin < count; begin += kPart) {
    char* to = part;
    for (std::size_t i = begin; i < std::min(count, begin + kPart); ++i) {
      if (i != 0) *to++ = ',';
      to = write_float(values[i], to);
    }
    out->append(part, to);
  }
  out->push_back(']');
}

void append_base64(std::string_view bytes, std::string* out) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t before = out->size();
  out->resize(before + (bytes.size() + 2) / 3 * 4);
  char* to = out->data() + before;
  const auto* from = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t left = bytes.size();
  for (; left >= 3; left -= 3, from += 3) {
    *to++ = kDigits[from[0] >> 2];
    *to++ = kDigits[(from[0] << 4 | from[1] >> 4) & 63];
    *to++ = kDigits[(from[1] << 2 | from[2] >> 6) & 63];
    *to++ = kDigits[from[2] & 63];
  }
  if (left == 0) return;
  const unsigned second = left == 2 ? from[1] : 0U;
  *to++ = kDigits[from[0] >> 2];
  *to++ = kDigits[(from[0] << 4 | second >> 4) & 63];
  *to++ = left == 2 ? kDigits[second << 2 & 63] : '=';
  *to = '=';
}

}  // namespace arlo::gateway
