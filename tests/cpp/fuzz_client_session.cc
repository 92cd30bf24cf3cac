// Any bytes from a worker: libFuzzer over src/transport/client_session. Every call ends once, and what it brings is
// bounded.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/client_session.h"

namespace {

using namespace arlo::transport;  // NOLINT(google-build-using-namespace): a program of one file

void need(bool what) {
  if (!what) std::abort();
}

constexpr int kCalls = 5;

}  // namespace

// The first byte says in what pieces the rest comes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t piece = data[0] == 0 ? size : data[0];
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  int ended[kCalls] = {};
  {
    ClientLimits limits;
    limits.message_bytes = 4096;
    ClientSession session("worker:1", limits, [] {});
    for (int i = 0; i < kCalls; ++i) {
      const auto stream = session.call("/method", std::string(100, 'r'), [&ended, i](Answer answer) {
        need(answer.bytes.size() <= 4096);
        need(!answer.lost || answer.status != 0);
        ++ended[i];
      });
      if (i == 3) session.give_up(stream);
    }
    for (bool good = true; good && !bytes.empty();) {
      std::string out;
      good = session.output(&out, 1 << 16) && session.feed(bytes.substr(0, piece));
      bytes.remove_prefix(bytes.size() < piece ? bytes.size() : piece);
      need(out.size() < 1 << 18);
    }
  }
  for (const int times : ended) need(times == 1);
  return 0;
}
