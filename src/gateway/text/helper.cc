#include "gateway/text/helpers.h"

#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "gateway/log.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace arlo::gateway {
namespace {

using nlohmann::json;

constexpr TimeNs kSecond = 1'000'000'000;
// Time limits for a slice, as the package needs 0.5 to 2 us per byte of most texts, and for start-up or loading.
constexpr TimeNs kSliceTime = 5 * kSecond;
constexpr TimeNs kByteTime = 10'000;
constexpr TimeNs kLoadTime = 15 * kSecond;
constexpr TimeNs kFirstPause = kSecond / 10;
constexpr TimeNs kLongestPause = 10 * kSecond;
constexpr int kNicer = 5;
constexpr std::size_t kMostKnown = 16;       // tokenizers kept by a helper
constexpr std::size_t kHead = 8;             // two sizes of 4 bytes: JSON, and the bytes after it
constexpr std::size_t kLargest = 512 << 20;  // of an answer

void append_size(std::size_t size, std::string* out) {
  const auto value = static_cast<std::uint32_t>(size);
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::size_t size_at(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::vector<std::uint8_t> flags(const json& from) { return from.get<std::vector<std::uint8_t>>(); }

}  // namespace

void HelperJob::cut() {
  const auto bytes_of = [this](std::size_t row) {
    return job->texts[row].size() + (job->seconds.empty() ? 0 : job->seconds[row].size());
  };
  from = to;
  if (!job->ids.empty()) slice_bytes = bytes;
  if (whole()) return;
  for (slice_bytes = bytes_of(to++); !whole() && slice_bytes + bytes_of(to) <= kSlice; ++to)
    slice_bytes += bytes_of(to);
}

Helper::Helper(transport::Loop& loop, Owner& owner, const std::vector<std::string>& command, bool of_long)
    : loop_(loop), owner_(owner), command_(command), of_long_(of_long) {}

Helper::~Helper() {
  if (fd_ < 0) return;
  loop_.forget(fd_, *this);
  ::close(fd_);
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool Helper::start() {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> words;
  words.reserve(command_.size() + 1);
  for (const auto& word : command_) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const int failed = posix_spawnp(&pid_, words.front(), &actions, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(pair[1]);
  if (failed != 0) {
    ::close(pair[0]);
    log_some(LogLevel::kError, "text_helper_not_started", {{"reason", std::string_view(std::strerror(failed))}});
    return false;
  }
  if (of_long_) setpriority(PRIO_PROCESS, static_cast<id_t>(pid_), getpriority(PRIO_PROCESS, 0) + kNicer);
  fd_ = pair[0];
  loop_.watch(fd_, EPOLLIN, *this);
  return true;
}

void Helper::begin(std::unique_ptr<HelperJob> job) {
  job_ = std::move(job);
  const bool starts = fd_ < 0;
  if (starts && !start()) {
    pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
    start_at_ = now_ns() + pause_;
    // Deferred, because the owner is handing out jobs.
    loop_.at_end([this] { owner_.ended(*this, std::move(job_), false); });
    return;
  }
  const auto& asked = *job_->job;
  // Discards the dead helper's results for this slice.
  job_->tokens.made.resize(job_->from);
  job_->tokens.words.resize(asked.written ? job_->from : 0);
  job_->tokens.specials.resize(job_->tokens.words.size());
  const bool loads = !knows(*asked.tokenizer);
  until_ =
      now_ns() + kSliceTime + static_cast<TimeNs>(job_->slice_bytes) * kByteTime + (starts || loads ? kLoadTime : 0);
  if (loads) {
    if (known_.size() >= kMostKnown) {
      add(R"({"op":"forget"})", {});
      known_.clear();
    }
    known_.insert(asked.tokenizer->id);
    add(json{{"op", "load"}, {"key", asked.tokenizer->id}}.dump(), asked.tokenizer->json);
  }
  json head{{"key", asked.tokenizer->id}};
  std::string blob;
  if (!asked.ids.empty()) {
    head["op"] = "decode";
    head["ids"] = asked.ids;
    head["skip_special"] = asked.skip_special;
  } else {
    head["op"] = "encode";
    head["most"] = asked.limits.most_tokens;
    head["keep_end"] = asked.limits.keep_end;
    head["special"] = asked.limits.add_special;
    head["written"] = asked.written;
    head["first"] = job_->from;
    head["pairs"] = !asked.seconds.empty();
    auto sizes = json::array();
    for (const auto* texts : {&asked.texts, &asked.seconds}) {
      for (std::size_t row = job_->from; row < std::min(job_->to, texts->size()); ++row) {
        sizes.push_back((*texts)[row].size());
        blob += (*texts)[row];
      }
    }
    head["sizes"] = std::move(sizes);
  }
  add(head.dump(), blob);
  write();
}

void Helper::add(const std::string& head, std::string_view blob) {
  append_size(head.size(), &out_);
  append_size(blob.size(), &out_);
  out_ += head;
  out_ += blob;
}

void Helper::write() {
  while (sent_ < out_.size()) {
    const auto count = send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;  // full, or closed: the next read reports it
    sent_ += static_cast<std::size_t>(count);
  }
  const bool all = sent_ == out_.size();
  if (all) {
    out_ = {};
    sent_ = 0;
  }
  loop_.change(fd_, all ? EPOLLIN : EPOLLIN | EPOLLOUT, *this);
}

void Helper::ready(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) write();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read();
}

void Helper::read() {
  std::array<char, 64 << 10> bytes;
  const auto count = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return end("it ended");
  in_.append(bytes.data(), static_cast<std::size_t>(count));
  if (in_.size() < kHead) return;
  const auto head = size_at(in_, 0);
  const auto blob = size_at(in_, sizeof(std::uint32_t));
  if (head + blob > kLargest) return end("its answer is too large");
  if (in_.size() < kHead + head + blob) return;
  if (job_ == nullptr || in_.size() > kHead + head + blob) return end("it answered what was not asked");
  const std::string all = std::exchange(in_, {});
  auto fault = take(std::string_view(all).substr(kHead, head), std::string_view(all).substr(kHead + head));
  if (fault && fault->code == Code::kInternal) return end("its answer was no answer");
  job_->tokens.fault = std::move(fault);
  pause_ = 0;
  owner_.over(*this);
}

MaybeFault Helper::take(std::string_view head, std::string_view blob) {
  const auto& asked = *job_->job;
  auto& job = job_->tokens;
  try {
    const auto said = json::parse(head);
    if (said.contains("error")) return invalid(said["error"].get<std::string>());
    if (!asked.ids.empty()) {
      job.decoded = said.at("texts").get<std::vector<std::string>>();
      return {};
    }
    const auto counts = said.at("counts").get<std::vector<std::size_t>>();
    const auto cut = flags(said.at("cut"));
    std::size_t sum = 0;
    for (const auto count : counts) sum += count;
    if (counts.size() != cut.size() || blob.size() != sum * (sizeof(std::int32_t) + 1))
      return Fault{Code::kInternal, ""};
    if (counts.size() != job_->to - job_->from) return Fault{Code::kInternal, ""};
    const std::size_t before = job.made.size();
    job.made.resize(before + counts.size());
    const auto* types = reinterpret_cast<const std::uint8_t*>(blob.data()) + sum * sizeof(std::int32_t);
    const char* at = blob.data();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      auto& made = job.made[before + i];
      made.ids.resize(counts[i]);
      if (counts[i] != 0) std::memcpy(made.ids.data(), at, counts[i] * sizeof(std::int32_t));
      at += counts[i] * sizeof(std::int32_t);
      made.type_ids.assign(types, types + counts[i]);
      types += counts[i];
      made.cut = cut[i] != 0;
    }
    job.before = said.at("before").get<text::Ids>();
    job.behind = said.at("behind").get<text::Ids>();
    if (asked.written) {
      auto words = said.at("words").get<std::vector<std::vector<std::string>>>();
      auto specials = said.at("specials").get<std::vector<std::vector<std::uint8_t>>>();
      const auto places = said.at("places").get<std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>>>();
      if (words.size() != counts.size() || specials.size() != counts.size() || places.size() != counts.size()) {
        return Fault{Code::kInternal, ""};
      }
      for (std::size_t i = 0; i < counts.size(); ++i) {
        if (words[i].size() != counts[i] || specials[i].size() != counts[i] || places[i].size() != counts[i]) {
          return Fault{Code::kInternal, ""};
        }
        for (const auto& [start, stop] : places[i]) job.made[before + i].places.push_back({start, stop});
        job.words.push_back(std::move(words[i]));
        job.specials.push_back(std::move(specials[i]));
      }
    }
    return {};
  } catch (const json::exception&) {
    return Fault{Code::kInternal, ""};
  }
}

TimeNs Helper::next(bool wanted) const {
  if (job_ != nullptr) return std::min(until_, job_->then == nullptr ? kNever : job_->deadline);
  return wanted ? start_at_ : kNever;
}

void Helper::check(TimeNs now) {
  if (job_ != nullptr && fd_ >= 0 && now >= until_) end("it was at one job for too long", true);
}

void Helper::end(const char* why, bool too_long) {
  loop_.forget(fd_, *this);
  ::close(std::exchange(fd_, -1));
  kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  in_ = {};
  out_ = {};
  sent_ = 0;
  known_.clear();
  start_at_ = now_ns() + pause_;  // at once, the first time
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  log_some(LogLevel::kWarning, "text_helper_ended",
           {{"pid", static_cast<std::int64_t>(pid_)}, {"status", static_cast<std::int64_t>(status)}, {"reason", why}});
  owner_.ended(*this, std::move(job_), too_long);
}

}  // namespace arlo::gateway
