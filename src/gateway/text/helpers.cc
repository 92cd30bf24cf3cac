#include "gateway/text/helpers.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"

namespace arlo::gateway {
namespace {

constexpr unsigned kMostTries = 2;  // for a job whose helper died

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
  for (std::size_t i = 0; i < count; ++i) {  // with several helpers, the first one is for short texts
    helpers_.push_back(
        std::make_unique<Helper>(loop_, static_cast<Helper::Owner&>(*this), command, i != 0 || count == 1));
  }
  if (helpers_.empty()) return;
  thread_ = std::thread([this] { loop_.run(); });
}

TextHelpers::~TextHelpers() {
  if (!thread_.joinable()) return;
  loop_.stop();
  thread_.join();
  loop_.clear(*this);
}

void TextHelpers::run(std::shared_ptr<text::Job> job, std::uint64_t client, TimeNs deadline, transport::Loop& loop,
                      std::function<void()> then) {
  HelperJob made{.job = std::move(job), .deadline = deadline, .loop = loop.handle(), .then = std::move(then)};
  made.client = client;
  made.bytes = bytes_of(*made.job);
  if (helpers_.empty()) return finish(made, Fault{Code::kInternal, "the gateway has no helpers for this tokenizer"});
  made.cut();
  // std::function requires a copyable object.
  loop_.post([this, shared = std::make_shared<HelperJob>(std::move(made))] {
    take(std::move(*shared), false);
    make_room();
    hand_out();
  });
}

// Adds a job to its client's line, whose jobs also take turns; `first`: its helper died.
void TextHelpers::take(HelperJob job, bool first) {
  auto line = std::ranges::find(lines_, job.client, &Line::client);
  if (line == lines_.end()) line = lines_.insert(line, Line{.client = job.client, .jobs = {}});
  line->bytes += kJob + job.bytes;
  bytes_ += kJob + job.bytes;
  line->jobs.insert(first ? line->jobs.begin() : line->jobs.end(), std::move(job));
}

// The line may be empty afterwards.
HelperJob TextHelpers::leave(Line& line, std::size_t place) {
  const auto found = line.jobs.begin() + static_cast<std::ptrdiff_t>(place);
  auto job = std::move(*found);
  line.jobs.erase(found);
  line.bytes -= kJob + job.bytes;
  bytes_ -= kJob + job.bytes;
  return job;
}

void TextHelpers::make_room() {
  while (bytes_ > kMostBytes) {
    const auto most = std::ranges::max_element(lines_, {}, &Line::bytes);
    auto job = leave(*most, most->jobs.size() - 1);
    if (most->jobs.empty()) lines_.erase(most);
    finish(job, Fault{Code::kResourceExhausted, "too many texts wait to be made token ids: try again later", true});
  }
}

// A free helper, preferably one that has the tokenizer loaded; null: none is free.
Helper* TextHelpers::free_for(const HelperJob& job, TimeNs now) const {
  Helper* free = nullptr;
  for (const auto& helper : helpers_) {
    if (!helper->free(now) || !helper->takes(job)) continue;
    if (free == nullptr || (helper->knows(*job.job->tokenizer) && !free->knows(*job.job->tokenizer)))
      free = helper.get();
  }
  return free;
}

void TextHelpers::hand_out() {
  const TimeNs now = now_ns();
  for (auto& line : lines_) {
    for (std::size_t i = 0; i < line.jobs.size();) {
      const bool wanted = line.jobs[i].job.use_count() > 1;  // a waiting caller also holds it
      if (wanted && now < line.jobs[i].deadline) {
        ++i;
        continue;
      }
      auto job = leave(line, i);
      finish(job, Fault{Code::kDeadlineExceeded, "the deadline passed before the text was made token ids"});
    }
  }
  std::erase_if(lines_, [](const Line& line) { return line.jobs.empty(); });
  for (;;) {
    Helper* free = nullptr;
    const auto line = std::ranges::find_if(lines_, [&](const Line& each) {
      free = free_for(each.jobs.front(), now);
      return free != nullptr;
    });
    if (line == lines_.end()) break;
    auto turn = std::move(*line);
    lines_.erase(line);
    auto job = std::make_unique<HelperJob>(leave(turn, 0));
    if (!turn.jobs.empty()) lines_.push_back(std::move(turn));
    free->begin(std::move(job));
  }
  wait();
}

void TextHelpers::wait() {
  TimeNs next = kNever;
  for (const auto& line : lines_) {
    for (const auto& job : line.jobs) next = std::min(next, job.deadline);
  }
  const TimeNs now = now_ns();
  for (const auto& helper : helpers_) {
    if (!helper->free(now)) next = std::min(next, helper->next(!lines_.empty()));  // one may be kept free
  }
  loop_.set(*this, next);
}

void TextHelpers::due() {
  const TimeNs now = now_ns();
  for (const auto& helper : helpers_) {
    auto* const job = helper->job();
    if (job != nullptr && now >= job->deadline) {  // the process continues, but its result is dropped
      finish(*job, Fault{Code::kDeadlineExceeded, "the deadline passed while the text was made token ids"});
    }
    helper->check(now);
  }
  hand_out();
}

void TextHelpers::over(Helper& helper) {
  auto job = helper.let_go();
  if (job != nullptr && (job->tokens.fault || job->whole())) {
    finish(*job, std::move(job->tokens.fault));
  } else if (job != nullptr && job->then != nullptr) {
    job->bytes -= job->slice_bytes;
    job->cut();
    take(std::move(*job), false);
  }
  hand_out();
}

void TextHelpers::ended(Helper&, std::unique_ptr<HelperJob> job, bool too_long) {
  if (job != nullptr && too_long) {
    finish(*job, invalid("row " + std::to_string(job->from) + ": the tokenizer takes too long for a text of " +
                         std::to_string(job->slice_bytes) + " bytes: send shorter texts, with spaces between words"));
  } else if (job != nullptr && ++job->tries < kMostTries && job->then != nullptr) {
    take(std::move(*job), true);
  } else if (job != nullptr) {
    finish(*job, Fault{Code::kInternal, "the process that makes token ids of this text ended"});
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
