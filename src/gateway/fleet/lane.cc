#include "gateway/fleet/lane.h"

#include "base/clock.h"
#include "base/small_memory.h"

namespace arlo::gateway {
namespace {
constexpr TimeNs kIdle = 60'000'000'000;  // for connections to workers that are gone or served by another lane
}

Lane::Lane() { loop_.set(*this, now_ns() + kIdle); }

Lane::~Lane() {
  stop();
  loop_.clear(*this);
}

void Lane::start() {
  thread_ = std::thread([this] {
    const SmallMemory pieces;
    loop_.run();
  });
}

void Lane::stop() {
  if (thread_.joinable()) {
    loop_.post([this] { loop_.stop(); });  // after work already handed over
    thread_.join();
  }
  channels_.clear();
}

transport::Channel& Lane::to(const std::string& endpoint) {
  auto& channel = channels_[endpoint];
  if (channel == nullptr) {
    transport::ChannelOptions options;
    options.address = endpoint;
    channel = std::make_unique<transport::Channel>(loop_, std::move(options));
  }
  return *channel;
}

void Lane::drop_workers() {
  loop_.run_here([this] { channels_.clear(); });
}

void Lane::due() {
  const TimeNs now = now_ns();
  std::erase_if(channels_,
                [&](const auto& entry) { return !entry.second->busy() && now - entry.second->used() > kIdle; });
  loop_.set(*this, now + kIdle);
}

}  // namespace arlo::gateway
