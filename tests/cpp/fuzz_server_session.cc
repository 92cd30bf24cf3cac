// Any bytes on a server's connection: libFuzzer over src/transport/server_session. Every call that begins is told once
// that it ended, and what the session keeps and sends stays bounded.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "transport/server_session.h"

namespace {

using namespace arlo::transport;  // NOLINT(google-build-using-namespace): a program of one file

void need(bool what) {
  if (!what) std::abort();
}

class Echo final : public Service {
 public:
  std::unique_ptr<CallHandler> begin(ServerCall& call) override {
    if (call.path().size() > 40) return nullptr;
    ++open;
    return std::make_unique<Handler>(*this, call);
  }
  int open = 0;

 private:
  class Handler final : public CallHandler {
   public:
    Handler(Echo& echo, ServerCall& call) : echo_(echo), call_(call) {}
    // Paths of odd length are streams, which stop their client for a while and let go of what they have answered.
    [[nodiscard]] bool unary() const override { return call_.path().size() % 2 == 0; }
    void message(std::string bytes) override {
      need(!closed_ && bytes.size() <= 4096);
      if (!unary()) {
        call_.pause(true);
        call_.freed(bytes.size());
      }
      call_.send(std::move(bytes));
    }
    void sent() override {
      if (!unary() && !closed_ && call_.unsent() == 0) call_.pause(false);
    }
    void half_closed() override {
      need(!closed_);
      call_.finish(call_.path().size() % 17, call_.header("user-agent"), {});
    }
    void closed(bool) override {
      need(!std::exchange(closed_, true));
      --echo_.open;
    }

   private:
    Echo& echo_;
    ServerCall& call_;
    bool closed_ = false;
  };
};

}  // namespace

// The first byte says in what pieces the rest comes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t piece = data[0] == 0 ? size : data[0];
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Echo echo;
  Memory memory;
  {
    Limits limits;
    limits.message_bytes = 4096;
    limits.header_bytes = 4096;
    limits.streams = 16;
    limits.resets = 50;
    limits.held_bytes = 20'000;
    limits.unread_bytes = 2'000;
    limits.frames.pings = limits.frames.empty_frames = 50;
    ServerSession session(echo, limits, memory, "fuzz", [] {});
    arlo::TimeNs now = 1;
    for (bool good = true; good && !bytes.empty();) {
      now += 100'000'000;
      good = session.tick(now) && session.feed(bytes.substr(0, piece), now);
      need(memory.used == session.held() && memory.holders == (memory.used == 0 ? 0 : 1));
      need(memory.used <= limits.held_bytes || session.calls() == 0);
      bytes.remove_prefix(bytes.size() < piece ? bytes.size() : piece);
      std::string out;
      if (!session.output(&out, 1 << 16)) good = false;
      need(out.size() < 1 << 18);
      need(session.calls() <= 16 + 1);
    }
  }
  need(echo.open == 0 && memory.used == 0 && memory.holders == 0);
  return 0;
}
