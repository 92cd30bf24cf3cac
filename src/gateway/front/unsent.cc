#include "gateway/front/unsent.h"

#include "gateway/log.h"

namespace arlo::gateway {

void UnsentAnswers::add(Answer& answer, grpc::ServerContext& context, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  answer.context = &context;
  answer.bytes = bytes;
  answer.before = last_;
  answer.after = nullptr;
  answer.listed = true;
  (last_ == nullptr ? first_ : last_->after) = &answer;
  last_ = &answer;
  bytes_ += bytes;
  while (bytes_ > limit_ && first_ != &answer) {
    Answer& oldest = *first_;
    unlink(oldest);
    // Under the lock: until remove() has had it, the call cannot end.
    oldest.context->TryCancel();
    ++given_up_;
    log(LogLevel::kWarning, "answer_not_read",
        {{"client", oldest.context->peer()}, {"bytes", static_cast<std::int64_t>(oldest.bytes)}});
  }
}

void UnsentAnswers::remove(Answer& answer) {
  const std::lock_guard lock(mutex_);
  if (answer.listed) unlink(answer);
}

void UnsentAnswers::unlink(Answer& answer) {
  (answer.before == nullptr ? first_ : answer.before->after) = answer.after;
  (answer.after == nullptr ? last_ : answer.after->before) = answer.before;
  answer.listed = false;
  bytes_ -= answer.bytes;
}

std::size_t UnsentAnswers::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::uint64_t UnsentAnswers::given_up() const {
  const std::lock_guard lock(mutex_);
  return given_up_;
}

}  // namespace arlo::gateway
