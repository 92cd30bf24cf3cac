#include "gateway/front/api/fields.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "text/unicode.h"

namespace arlo::gateway {
namespace {

using nlohmann::json;

// Bytes that end a run of literal characters in a string.
constexpr std::array<bool, 256> stops() {
  std::array<bool, 256> made{};
  for (std::size_t c = 0; c < 0x20; ++c) made[c] = true;
  made['"'] = made['\\'] = true;
  return made;
}
constexpr auto kStops = stops();

// Memory of values relative to a number's (16 bytes), and the total that one text may use: 128 MiB.
constexpr std::size_t kOfText = 4;
constexpr std::size_t kOfList = 6;
constexpr std::size_t kOfField = 6;
constexpr std::size_t kMostTaken = 8 << 20;

// Whether any of eight bytes is above 0x7f, below 0x20, '"' or '\'.
bool odd_one_in(std::uint64_t eight) {
  constexpr std::uint64_t kOnes = ~std::uint64_t{0} / 255;
  constexpr std::uint64_t kHigh = kOnes * 0x80;
  const auto zero_in = [](std::uint64_t value) { return (value - kOnes) & ~value; };
  const std::uint64_t below = (eight - kOnes * 0x20) & ~eight;
  return ((eight | below | zero_in(eight ^ kOnes * '"') | zero_in(eight ^ kOnes * '\\')) & kHigh) != 0;
}

class Reader {
 public:
  Reader(std::string_view text, std::size_t deepest)
      : at_(text.data()), end_(text.data() + text.size()), deepest_(deepest) {}

  JsonRead read(json* out) {
    if (left() >= 3 && std::memcmp(at_, "\xef\xbb\xbf", 3) == 0) at_ += 3;
    const bool good = value(out, 0);
    skip();
    if (taken_ > kMostTaken) return JsonRead::kTooMany;
    return too_deep_ ? JsonRead::kTooDeep : good && at_ == end_ ? JsonRead::kOk : JsonRead::kWrong;
  }

 private:
  [[nodiscard]] std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  void skip() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view wanted) {
    if (!std::string_view(at_, left()).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }

  bool room_for(std::size_t more) { return (taken_ += more) <= kMostTaken; }

  bool value(json* out, std::size_t depth) {
    skip();
    if (at_ == end_ || !room_for(1)) return false;
    switch (*at_) {
      case '{':
        return object(out, depth + 1);
      case '[':
        return array(out, depth + 1);
      case '"': {
        std::string text;
        if (!room_for(kOfText) || !string(&text)) return false;
        *out = std::move(text);
        return true;
      }
      case 't':
        *out = true;
        return word("true");
      case 'f':
        *out = false;
        return word("false");
      case 'n':
        *out = nullptr;
        return word("null");
      default:
        return number(out);
    }
  }

  bool object(json* out, std::size_t depth) {
    if ((too_deep_ = depth > deepest_) || !room_for(kOfList)) return false;
    *out = json::object();
    auto& fields = out->get_ref<json::object_t&>();
    ++at_;
    skip();
    if (take('}')) return true;
    for (;;) {
      skip();
      std::string key;
      if (at_ == end_ || *at_ != '"' || !room_for(kOfField) || !string(&key)) return false;
      skip();
      if (!take(':') || !value(&fields[std::move(key)], depth)) return false;
      skip();
      if (take('}')) return true;
      if (!take(',')) return false;
    }
  }

  bool array(json* out, std::size_t depth) {
    if ((too_deep_ = depth > deepest_) || !room_for(kOfList)) return false;
    *out = json::array();
    auto& items = out->get_ref<json::array_t&>();
    ++at_;
    skip();
    if (take(']')) return true;
    for (;;) {
      if (!value(&items.emplace_back(), depth)) return false;
      skip();
      if (take(']')) return true;
      if (!take(',')) return false;
    }
  }

  bool string(std::string* out) {
    ++at_;
    for (;;) {
      const char* const from = at_;
      bool ascii = true;
      for (std::uint64_t eight = 0; left() >= 8; at_ += 8) {
        std::memcpy(&eight, at_, 8);
        if (odd_one_in(eight)) break;
      }
      while (at_ != end_ && !kStops[static_cast<unsigned char>(*at_)])
        ascii = static_cast<signed char>(*at_++) >= 0 && ascii;
      const std::string_view run(from, static_cast<std::size_t>(at_ - from));
      if (!ascii && !valid_utf8(run)) return false;
      out->append(run);
      if (at_ == end_) return false;
      if (*at_ == '"') {
        ++at_;
        return true;
      }
      if (*at_ != '\\' || !escape(out)) return false;
    }
  }

  bool escape(std::string* out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    if (left() < 2) return false;
    const char name = at_[1];
    at_ += 2;
    if (const auto found = kNames.find(name); found != std::string_view::npos) {
      out->push_back(kMeant[found]);
      return true;
    }
    std::uint32_t code = 0;
    if (name != 'u' || !four_digits(&code)) return false;
    if (code >= 0xdc00 && code < 0xe000) return false;
    if (code >= 0xd800 && code < 0xdc00) {
      std::uint32_t low = 0;
      if (!word("\\u") || !four_digits(&low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    }
    text::append_utf8(code, *out);
    return true;
  }

  bool four_digits(std::uint32_t* out) {
    if (left() < 4) return false;
    const auto [stop, error] = std::from_chars(at_, at_ + 4, *out, 16);
    if (error != std::errc() || stop != at_ + 4) return false;
    at_ += 4;
    return true;
  }

  bool digits() {
    const char* const from = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ != from;
  }

  bool number(json* out) {
    const char* const from = at_;
    const bool negative = take('-');
    if (at_ == end_ || (*at_ == '0' && left() > 1 && at_[1] >= '0' && at_[1] <= '9') || !digits()) return false;
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (!digits()) return false;
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      whole = false;
      ++at_;
      if (!take('-')) take('+');
      if (!digits()) return false;
    }
    if (whole && negative) {
      std::int64_t found = 0;
      if (std::from_chars(from, at_, found).ec == std::errc()) {
        *out = found;
        return true;
      }
    } else if (whole) {
      std::uint64_t found = 0;
      if (std::from_chars(from, at_, found).ec == std::errc()) {
        *out = found;
        return true;
      }
    }
    double found = 0;
    if (std::from_chars(from, at_, found).ec != std::errc())
      found = std::strtod(std::string(from, at_).c_str(), nullptr);
    *out = found;
    return std::isfinite(found);
  }

  const char* at_;
  const char* const end_;
  const std::size_t deepest_;
  bool too_deep_ = false;
  std::size_t taken_ = 0;
};

}  // namespace

JsonRead read_json(std::string_view text, std::size_t deepest, json* out) { return Reader(text, deepest).read(out); }

}  // namespace arlo::gateway
