// Any bytes of a stream: libFuzzer over MessageReader. However they come, the messages are those that a plain reading
// finds, and no more is held than has come.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "transport/grpc_message.h"

namespace {

using namespace arlo::transport;  // NOLINT(google-build-using-namespace): a program of one file

constexpr std::size_t kLeast = 30;  // that a std::string takes once it takes any

void need(bool what) {
  if (!what) std::abort();
}

// All messages so far, each with its length and flag before it.
void add(std::string* all, std::string_view message, bool compressed) {
  all->append(text_of(prefix_of(message.size()))).append(message).push_back(compressed ? '1' : '0');
}

MessageReader::Result read_plainly(std::string_view bytes, std::size_t most, std::string* all) {
  while (bytes.size() >= kPrefixBytes) {
    std::size_t length = 0;
    for (const char each : bytes.substr(1, kPrefixBytes - 1)) length = 256 * length + static_cast<unsigned char>(each);
    if (bytes[0] != 0 && bytes[0] != 1) return MessageReader::Result::kMalformed;
    if (length > most) return MessageReader::Result::kTooLarge;
    if (bytes.size() - kPrefixBytes < length) break;
    add(all, bytes.substr(kPrefixBytes, length), bytes[0] == 1);
    bytes.remove_prefix(kPrefixBytes + length);
  }
  return MessageReader::Result::kOk;
}

}  // namespace

// The first byte says in what pieces the rest comes, the second how long messages may be.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t piece = data[0] == 0 ? size : data[0];
  const std::uint32_t most = data[1];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  static std::string expected, found, again;  // their memory is used again
  expected.clear();
  found.clear();
  const auto result = read_plainly(bytes, most, &expected);
  MessageReader reader(most);
  auto told = MessageReader::Result::kOk;
  for (std::size_t at = 0; at < bytes.size() && told == MessageReader::Result::kOk; at += piece) {
    told = reader.feed(bytes.substr(at, piece),
                       [&](Message message, bool compressed) { add(&found, message.whole(), compressed); });
    need(reader.held() <= std::max<std::size_t>(most, kLeast));
  }
  need(told == result && found == expected);

  // What is found, written again, is read the same.
  again.clear();
  MessageReader other(most);
  for (std::string_view rest = found; !rest.empty();) {
    std::size_t length = 0;
    for (const char each : rest.substr(1, kPrefixBytes - 1)) length = 256 * length + static_cast<unsigned char>(each);
    const Piece written{prefix_of(length), std::string(rest.substr(kPrefixBytes, length))};
    const bool compressed = rest[kPrefixBytes + length] == '1';
    std::uint8_t out[kPrefixBytes + 255];
    std::size_t at = 0;
    while (at < kPrefixBytes + length) at += read_piece(written, at, out + at, piece);
    out[0] = compressed ? 1 : 0;
    need(other.feed({reinterpret_cast<const char*>(out), at}, [&](Message message, bool flag) {
      add(&again, message.whole(), flag);
    }) == MessageReader::Result::kOk);
    rest.remove_prefix(kPrefixBytes + length + 1);
  }
  need(again == found);
  return 0;
}
