#include "gateway/text/helpers.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"

namespace arlo::gateway {
namespace {

constexpr unsigned kMostTries = 2;  // of a job, whose helper died

std::size_t bytes_of(const text::Job& job) {
  std::size_t bytes = 0;
  for (const auto& text : job.texts) bytes += text.size();
  for (const auto& text : job.seconds) bytes += text.size();
  for (const auto& ids : job.ids) bytes += ids.size() * sizeof(std::int32_t);
  return bytes;
}

}  // namespace

TextHelpers::TextHelpers(const std::vector<std::string>& command, std::size_t count) {
  if (command.empty()) return;
  for (std::size_t i = 0; i < count; ++i)
    helpers_.push_back(std::make_unique<Helper>(loop_, static_cast<Helper::Owner&>(*this), command));
  if (helpers_.empty()) return;
  thread_ = std::thread([this] { loop_.run(); });
}

TextHelpers::~TextHelpers() {
  if (!thread_.joinable()) return;
  loop_.stop();
  thread_.join();
  loop_.clear(*this);
}

void TextHelpers::run(std::shared_ptr<text::Job> job, TimeNs deadline, transport::Loop& loop,
                      std::function<void()> then) {
  HelperJob made{.job = std::move(job), .deadline = deadline, .loop = loop.handle(), .then = std::move(then)};
  made.bytes = bytes_of(*made.job);
  if (helpers_.empty()) return finish(made, Fault{Code::kInternal, "the gateway has no helpers for this tokenizer"});
  // A function that can be copied is asked for.
  loop_.post([this, shared = std::make_shared<HelperJob>(std::move(made))] { take(std::move(*shared)); });
}

void TextHelpers::take(HelperJob job) {
  if (waiting_.size() >= kMostWaiting || bytes_ + job.bytes > kMostBytes) {
    finish(job, Fault{Code::kResourceExhausted, "too many texts wait to be made token ids: try again later", true});
    return;
  }
  bytes_ += job.bytes;
  waiting_.push_back(std::move(job));
  hand_out();
}

void TextHelpers::hand_out() {
  const TimeNs now = now_ns();
  const auto over = [&](HelperJob& job) {
    const bool wanted = job.job.use_count() > 1;  // who waits for it holds it, too
    if (wanted && now < job.deadline) return false;
    bytes_ -= job.bytes;
    finish(job, Fault{Code::kDeadlineExceeded, "the deadline passed before the text was made token ids"});
    return true;
  };
  std::erase_if(waiting_, over);
  // First those that know the tokenizer already.
  for (const bool known : {true, false}) {
    for (const auto& helper : helpers_) {
      if (waiting_.empty()) break;
      if (!helper->free(now) || (known && !helper->knows(*waiting_.front().job->tokenizer))) continue;
      auto job = std::make_unique<HelperJob>(std::move(waiting_.front()));
      waiting_.pop_front();
      bytes_ -= job->bytes;
      helper->begin(std::move(job));
    }
  }
  wait();
}

void TextHelpers::wait() {
  TimeNs next = kNever;
  for (const auto& job : waiting_) next = std::min(next, job.deadline);
  for (const auto& helper : helpers_) {
    next = std::min(next, helper->next(!waiting_.empty()));
  }
  loop_.set(*this, next);
}

void TextHelpers::due() {
  const TimeNs now = now_ns();
  for (const auto& helper : helpers_) {
    auto* const job = helper->job();
    if (job != nullptr && now >= job->deadline) {  // it goes on, for nobody
      finish(*job, Fault{Code::kDeadlineExceeded, "the deadline passed while the text was made token ids"});
    }
    helper->check(now);
  }
  hand_out();
}

void TextHelpers::over(Helper& helper) {
  const auto job = helper.let_go();
  if (job != nullptr) finish(*job, std::move(job->tokens.fault));
  hand_out();
}

void TextHelpers::ended(Helper&, std::unique_ptr<HelperJob> job) {
  if (job != nullptr) {
    if (++job->tries < kMostTries) {
      bytes_ += job->bytes;
      waiting_.push_front(std::move(*job));
    } else {
      finish(*job, Fault{Code::kInternal, "the process that makes token ids of this text ended"});
    }
  }
  hand_out();
}

void TextHelpers::finish(HelperJob& job, MaybeFault fault) {
  if (job.then == nullptr) return;
  auto tokens = std::make_shared<text::Tokens>(std::move(job.tokens));
  tokens->fault = std::move(fault);
  job.loop->post([job = job.job, then = std::exchange(job.then, nullptr), tokens] {
    if (job->dropped) return;
    static_cast<text::Tokens&>(*job) = std::move(*tokens);
    job->done = true;
    then();
  });
}

}  // namespace arlo::gateway
