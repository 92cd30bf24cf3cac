#include "gateway/front/stream.h"

#include <algorithm>
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

  std::size_t owed = 0;  // bytes that its answer is expected to take; under the stream's lock

 private:
  StreamCall& stream_;
};

StreamCall::StreamCall(DataService& service, grpc::ServerCompletionQueue& queue) : service_(service), queue_(queue) {
  context_.AsyncNotifyWhenDone(over_.tag());
  service_.RequestModelStreamInfer(&context_, &io_, &queue_, &queue_, accepted_.tag());
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
  closing_ = closing_ || closing;
  ended_ = ended_ || fault.has_value();
  advance(lock);
}

void StreamCall::read(bool ok) {
  std::shared_ptr<Item> item;
  bool closing = false;
  {
    Lock lock(mutex_);
    closing = closing_;
    if (!ok || ended_ || finishing_) {
      reading_ = false;
      ended_ = true;
      advance(lock);
      return;
    }
    item = std::make_shared<Item>(*this);
    open_.emplace(item.get(), item);
  }
  auto fault = service_.receive(incoming_, context_, true, item.get());
  if (!fault && closing) fault = Fault{Code::kUnavailable, "the gateway is stopping: send the request elsewhere"};
  incoming_.Clear();
  {
    Lock lock(mutex_);
    reading_ = false;  // not before incoming_ is free: advance() may start the next read
    if (!fault) {
      item->owed = std::max(known_answer_bytes(*item->model, item->request), largest_);
      owed_ += item->owed;
      advance(lock);  // does not end the stream: the item is open
    }
  }
  if (fault) {
    service_.count_refused(*item, *fault);
    answer(encode_stream_fault(*fault, item->request.id()), item.get());
  } else {
    item->router->submit(*item);
  }
}

void StreamCall::answer(const grpc::ByteBuffer& message, Item* item) {
  std::shared_ptr<Item> kept;  // freed after the lock is released
  Lock lock(mutex_);
  const auto found = open_.find(item);
  kept = std::move(found->second);
  open_.erase(found);
  owed_ -= kept->owed;
  if (!broken_) {
    auto& outgoing = outbox_.emplace_back(Outgoing{message, {}});
    const std::size_t bytes = message.Length();
    service_.unsent().add(outgoing.unsent, context_, bytes);
    owed_ += bytes;
    largest_ = std::max(largest_, bytes);
  }
  advance(lock);
}

void StreamCall::written(bool ok) {
  Lock lock(mutex_);
  writing_ = false;
  service_.unsent().remove(outbox_.front().unsent);
  owed_ -= outbox_.front().unsent.bytes;
  outbox_.pop_front();
  broken_ = broken_ || !ok;
  if (broken_) drop_outbox();
  advance(lock);
}

void StreamCall::drop_outbox() {
  for (; !outbox_.empty(); outbox_.pop_front()) {
    service_.unsent().remove(outbox_.front().unsent);
    owed_ -= outbox_.front().unsent.bytes;
  }
}

void StreamCall::over(bool) {
  std::vector<std::shared_ptr<Item>> open;
  if (context_.IsCancelled()) {
    const Lock lock(mutex_);
    ended_ = broken_ = true;
    if (!writing_) drop_outbox();
    for (const auto& [key, item] : open_) open.push_back(item);
  }
  for (const auto& item : open) {
    if (item->router != nullptr) item->router->cancel(*item);
  }
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
  closing_ = true;
  advance(lock);
}

void StreamCall::advance(Lock& lock) {
  if (deleting_) return;  // close() met a stream that is on its way out
  const bool over = (ended_ || closing_) && open_.empty() && outbox_.empty();
  if (!reading_ && !ended_ && !over && open_.size() + outbox_.size() < kWindow && owed_ < kMostOwed) {
    reading_ = true;
    io_.Read(&incoming_, read_.tag());
  }
  if (!writing_ && !outbox_.empty()) {
    writing_ = true;
    io_.Write(outbox_.front().message, written_.tag());
  }
  if (!writing_ && !finishing_ && over) {
    finishing_ = true;
    if (!ended_)
      status_ = {grpc::StatusCode::UNAVAILABLE, "the gateway is stopping: what is unanswered was not served"};
    io_.Finish(status_, finished_.tag());
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
