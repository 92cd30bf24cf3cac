#include "gateway/stream.h"

#include <utility>
#include <vector>

#include "gateway/encode.h"

namespace arlo::gateway {

// Kept alive by open_ until it is answered, and by OnCancel while it cancels.
class StreamReactor::Item final : public Call {
 public:
  explicit Item(StreamReactor& stream) : stream_(stream) {}

  void complete() override {
    grpc::ByteBuffer message;
    if (const auto fault = encode_answer(*this, true, &message)) message = encode_stream_fault(*fault, request.id());
    stream_.answer(std::move(message), this);
  }

 private:
  StreamReactor& stream_;
};

StreamReactor::StreamReactor(DataService& service, const grpc::CallbackServerContext& context)
    : service_(service), context_(context) {
  {
    const std::lock_guard lock(service_.streams_mutex_);
    service_.streams_.insert(this);
    ended_ = service_.closing_;
  }
  if (const auto fault = service_.authorize(context)) {
    finished_ = true;
    reading_ = false;
    Finish(to_status(*fault));
    return;
  }
  StartRead(&incoming_);
}

void StreamReactor::OnReadDone(bool ok) {
  std::shared_ptr<Item> item;
  {
    std::unique_lock lock(mutex_);
    if (!ok || finished_) {
      reading_ = false;
      ended_ = true;
      advance(lock);
      return;
    }
    item = std::make_shared<Item>(*this);
    open_.emplace(item.get(), item);
  }
  auto fault = service_.receive(incoming_, context_, true, item.get());
  incoming_.Clear();
  {
    std::unique_lock lock(mutex_);
    if (!fault && ended_) fault = Fault{Code::kUnavailable, "the gateway is stopping"};
    reading_ = false;  // not before incoming_ is free: advance() may start the next read on any thread
    advance(lock);     // does not finish: the item is open
  }
  if (fault) {
    service_.router_.count_refused(*fault);
    answer(encode_stream_fault(*fault, item->request.id()), item.get());
  } else {
    service_.router_.submit(*item);
  }
}

void StreamReactor::answer(grpc::ByteBuffer message, Item* item) {
  std::shared_ptr<Item> kept;  // freed after the lock is released
  std::unique_lock lock(mutex_);
  const auto found = open_.find(item);
  kept = std::move(found->second);
  open_.erase(found);
  if (finished_) return;
  outbox_.push_back(std::move(message));
  advance(lock);
}

void StreamReactor::OnWriteDone(bool ok) {
  std::unique_lock lock(mutex_);
  writing_ = false;
  outbox_.pop_front();
  if (!ok) outbox_.clear();  // the client has gone; OnCancel follows
  advance(lock);
}

void StreamReactor::advance(std::unique_lock<std::mutex>& lock) {
  if (finished_) return;
  if (!reading_ && !ended_ && open_.size() < kWindow) {
    reading_ = true;
    StartRead(&incoming_);
  }
  if (!writing_ && !outbox_.empty()) {
    writing_ = true;
    StartWrite(&outbox_.front());
    return;
  }
  if (!writing_ && ended_ && open_.empty()) {
    finished_ = true;
    lock.unlock();  // Finish may let another thread delete this before it returns
    Finish(grpc::Status::OK);
  }
}

void StreamReactor::OnCancel() {
  std::vector<std::shared_ptr<Item>> open;
  {
    std::unique_lock lock(mutex_);
    ended_ = true;
    for (const auto& [key, item] : open_) open.push_back(item);
  }
  for (const auto& item : open) service_.router_.cancel(*item);
  std::unique_lock lock(mutex_);
  advance(lock);
}

void StreamReactor::close() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  advance(lock);
}

void StreamReactor::OnDone() {
  {
    const std::lock_guard lock(service_.streams_mutex_);
    service_.streams_.erase(this);
  }
  delete this;
}

}  // namespace arlo::gateway
