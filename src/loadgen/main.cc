// arlo-loadgen: runs one load and reports on it. The main thread takes all signals here, with sigtimedwait.

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "loadgen/load.h"

namespace arlo::loadgen {

namespace {

constexpr int kDone = 0, kBadInput = 2, kUnreachable = 3, kInterrupted = 130;
constexpr int kFinishedSignal = SIGUSR1;  // from our own threads: the last request is done

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// False: the reader of our output is gone.
bool PrintLine(std::string line) {
  line += '\n';
  const char* at = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t n = write(STDOUT_FILENO, at, left);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    at += n;
    left -= static_cast<size_t>(n);
  }
  return true;
}

struct Verdict {
  bool interrupted = false;
  bool undrained = false;  // answers were still missing when we stopped waiting for them
};

// Waits for the end of the load; prints progress; a first SIGINT or SIGTERM stops the sending, a second one the
// waiting.
Verdict Supervise(const Options& options, const sigset_t& signals, Clock::time_point start, Client* client, Load* load,
                  Report* report) {
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  Verdict verdict;
  bool cancelled = false;
  std::optional<Clock::time_point> give_up;
  Clock::time_point next_line = start + seconds(options.progress_s);
  const auto interrupt = [&] {
    if (verdict.interrupted) {
      give_up = Clock::now();
      return;
    }
    verdict.interrupted = true;
    load->Stop();
    give_up = Clock::now() + seconds(options.grace_s);
  };
  while (true) {
    Clock::time_point wake = next_line;
    if (give_up && !cancelled) wake = std::min(wake, *give_up);
    const auto left = std::max(wake - Clock::now(), Clock::duration::zero());
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec wait{ns / 1'000'000'000, ns % 1'000'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &wait);
    if (signal == kFinishedSignal) return verdict;
    if (signal == SIGINT || signal == SIGTERM) interrupt();

    const Clock::time_point now = Clock::now();
    if (!give_up && !load->sending()) give_up = now + seconds(options.drain_s);
    if (give_up && now >= *give_up && !cancelled) {
      cancelled = true;
      verdict.undrained = report->sent() > report->done();
      client->CancelAll();
    }
    if (now >= next_line) {
      next_line += seconds(options.progress_s);
      const double t_s = std::chrono::duration<double>(now - start).count();
      if (!PrintLine(report->Progress(t_s)) && !verdict.interrupted) interrupt();
    }
  }
}

int Run(const Options& options) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, kFinishedSignal}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread exists, so that all inherit it
  signal(SIGPIPE, SIG_IGN);

  const Plan plan(options.plan);
  const bool open = options.mode == Options::Mode::kOpen;
  Report report(open ? plan.entries() : options.requests, options.slo_us, options.late_us);
  Client client(options, plan, &report);
  if (!client.Connect()) {
    std::fprintf(stderr, "arlo-loadgen: %s did not accept %u connections within %g s\n", options.target.c_str(),
                 options.channels, options.connect_s);
    return kUnreachable;
  }
  std::string error;
  if (!client.WarmUp(options.warmup, &error)) {
    std::fprintf(stderr, "arlo-loadgen: %s\n", error.c_str());
    return kUnreachable;
  }

  const pthread_t main_thread = pthread_self();
  const auto finished = [main_thread] { pthread_kill(main_thread, kFinishedSignal); };
  const std::unique_ptr<Load> load = MakeLoad(options, plan, &client, &report, finished);
  const double cpu_before = CpuSeconds();
  // An open loop starts a little later, so that the threads run when the first request is due.
  const Clock::time_point start = Clock::now() + std::chrono::milliseconds(open ? 50 : 0);
  load->Begin(start);
  const Verdict verdict = Supervise(options, signals, start, &client, load.get(), &report);
  const double duration_s = std::chrono::duration<double>(Clock::now() - start).count();
  const double cpu_s = CpuSeconds() - cpu_before;

  WriteRecords(options.records, load->End());
  client.CloseResponses();
  PrintLine(report.Final(duration_s, cpu_s, verdict.interrupted, verdict.undrained));
  return verdict.interrupted ? kInterrupted : kDone;
}

}  // namespace

}  // namespace arlo::loadgen

int main(int argc, char** argv) {
  using namespace arlo::loadgen;
  if (argc > 1 && (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0)) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  try {
    return Run(ParseOptions(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "arlo-loadgen: %s\n", error.what());
    return kBadInput;
  }
}
