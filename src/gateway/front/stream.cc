#include "gateway/front/stream.h"

#include <utility>
#include <vector>

#include "gateway/front/encode.h"

namespace arlo::gateway {

// Kept alive by open_ until it is answered, and by over() while it cancels.
class StreamCall::Item final : public Call {
 public:
  explicit Item(StreamCall& stream) : stream_(stream) { queue = &stream.queue_; }

  void complete() override {
    grpc::ByteBuffer message;
    if (const auto fault = encode_answer(*this, true, stream_.service_.max_message_bytes(), &message)) {
      message = encode_stream_fault(*fault, request.id());
    }
    stream_.answer(message, this);
  }

 private:
  StreamCall& stream_;
};

StreamCall::StreamCall(DataService& service, grpc::ServerCompletionQueue& queue) : service_(service), queue_(queue) {
  context_.AsyncNotifyWhenDone(&over_);
  service_.RequestModelStreamInfer(&context_, &io_, &queue_, &queue_, &accepted_);
}

void StreamCall::accepted(bool ok) {
  if (!ok) {  // the server shuts down; `over` never comes for a call that never was
    delete this;
    return;
  }
  service_.call_received();
  new StreamCall(service_, queue_);
  bool closing = false;
  {
    const std::lock_guard lock(service_.streams_mutex_);
    service_.streams_.insert(this);
    closing = service_.closing_;
  }
  const auto fault = service_.authorize(context_);
  Lock lock(mutex_);
  if (fault) status_ = to_status(*fault);
  ended_ = ended_ || closing || fault.has_value();
  advance(lock);
}

void StreamCall::read(bool ok) {
  std::shared_ptr<Item> item;
  {
    Lock lock(mutex_);
    if (!ok || ended_) {
      reading_ = false;
      ended_ = true;
      advance(lock);
      return;
    }
    item = std::make_shared<Item>(*this);
    open_.emplace(item.get(), item);
  }
  const auto fault = service_.receive(incoming_, context_, true, item.get());
  incoming_.Clear();
  {
    Lock lock(mutex_);
    reading_ = false;  // not before incoming_ is free: advance() may start the next read
    advance(lock);     // does not end the stream: the item is open
  }
  if (fault) {
    service_.router().count_refused(*fault);
    answer(encode_stream_fault(*fault, item->request.id()), item.get());
  } else {
    service_.router().submit(*item);
  }
}

void StreamCall::answer(const grpc::ByteBuffer& message, Item* item) {
  std::shared_ptr<Item> kept;  // freed after the lock is released
  Lock lock(mutex_);
  const auto found = open_.find(item);
  kept = std::move(found->second);
  open_.erase(found);
  if (!broken_) outbox_.push_back(message);
  advance(lock);
}

void StreamCall::written(bool ok) {
  Lock lock(mutex_);
  writing_ = false;
  outbox_.pop_front();
  broken_ = broken_ || !ok;
  if (broken_) outbox_.clear();
  advance(lock);
}

void StreamCall::over(bool) {
  std::vector<std::shared_ptr<Item>> open;
  if (context_.IsCancelled()) {
    const Lock lock(mutex_);
    ended_ = broken_ = true;
    if (!writing_) outbox_.clear();
    for (const auto& [key, item] : open_) open.push_back(item);
  }
  for (const auto& item : open) service_.router().cancel(*item);
  Lock lock(mutex_);
  over_done_ = true;
  advance(lock);
}

void StreamCall::finished(bool) {
  Lock lock(mutex_);
  finish_done_ = true;
  advance(lock);
}

void StreamCall::close() {
  Lock lock(mutex_);
  ended_ = true;
  advance(lock);
}

void StreamCall::advance(Lock& lock) {
  if (deleting_) return;  // close() met a stream that is on its way out
  if (!reading_ && !ended_ && open_.size() < kWindow) {
    reading_ = true;
    io_.Read(&incoming_, &read_);
  }
  if (!writing_ && !outbox_.empty()) {
    writing_ = true;
    io_.Write(outbox_.front(), &written_);
  }
  if (!writing_ && !finishing_ && ended_ && open_.empty()) {
    finishing_ = true;
    io_.Finish(status_, &finished_);
  }
  if (finish_done_ && over_done_ && !reading_ && open_.empty()) {
    deleting_ = true;
    lock.unlock();
    {
      const std::lock_guard streams(service_.streams_mutex_);
      service_.streams_.erase(this);
    }
    auto& service = service_;
    delete this;
    service.call_over();
  }
}

}  // namespace arlo::gateway
