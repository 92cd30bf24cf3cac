#include "gateway/desk/trace.h"

#include <algorithm>
#include <charconv>

namespace arlo::gateway {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// The mixing step of splitmix64, for ids that look unrelated.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace

std::string hex_of(std::uint64_t span) {
  std::string out(16, '0');
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = kDigits[span >> (60 - 4 * i) & 15];
  return out;
}

std::string TraceParent::text() const {
  return "00-" + trace_id + "-" + hex_of(span) + "-" + kDigits[flags >> 4] + kDigits[flags & 15];
}

// Format: version "-" trace-id "-" parent-id "-" flags; a later version may append more.
std::optional<TraceParent> read_traceparent(std::string_view text) {
  constexpr std::size_t kSize = 55;
  if (text.size() < kSize || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  const auto version = text.substr(0, 2);
  if (version == "ff" || (version == "00" && text.size() != kSize) || (text.size() > kSize && text[kSize] != '-')) {
    return {};
  }
  const auto trace_id = text.substr(3, 32);
  const auto span = text.substr(36, 16);
  const auto flags = text.substr(53, 2);
  if (!is_hex(version) || !is_hex(trace_id) || !is_hex(span) || !is_hex(flags)) return {};
  if (trace_id.find_first_not_of('0') == std::string_view::npos) return {};
  TraceParent out;
  out.trace_id = trace_id;
  std::from_chars(span.data(), span.data() + span.size(), out.span, 16);
  std::from_chars(flags.data(), flags.data() + flags.size(), out.flags, 16);
  if (out.span == 0) return {};
  return out;
}

std::uint64_t Trace::execution(std::uint32_t row, std::uint32_t attempt) const {
  return mixed(own ^ (std::uint64_t{row} << 32 | attempt)) | 1;  // 0 is no span
}

std::string Trace::for_worker(std::uint32_t row, std::uint32_t attempt) const {
  TraceParent out = parent;
  if (own != 0) {
    out.span = execution(row, attempt);
    out.flags |= TraceParent::kSampled;
  }
  return out.text();
}

}  // namespace arlo::gateway
