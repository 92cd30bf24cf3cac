// arlo-guard: runs one program so that nothing of it outlives the process that asked for it.
//
//   arlo-guard [--grace-s=S] [--orphan-grace-s=S] [--linger-s=S --socket=PATH] [--shm-prefix=P] [--report-fd=N]
//              -- PROGRAM ARGUMENT...
//
// Standard input is a lifeline: a pipe whose other end only the parent holds. When the parent is gone, for any reason
// and from any thread, the pipe reads end-of-file and the guard stops the program. (A parent-death signal
// alone follows the *thread* that started the child, and does not reach the program's own children.)
//
//   SIGTERM                  SIGTERM to the program; SIGKILL to all that is left after grace-s seconds (default 5)
//   end-of-file              the same after orphan-grace-s seconds (default 2); with linger-s (default 0), only when
//                            no other process has taken the program over within that time
//   SIGQUIT                  SIGKILL at once
//   the program exits        all processes it left behind (such as Python-backend stubs) are killed and shared-memory
//                            files /dev/shm/P* (left by a killed server) removed; the guard exits with its code,
//                            or 128 + the signal that ended it
//   the guard is killed      the program gets SIGKILL from the kernel
//
// With --socket, another process of the same user can take the program over once the lifeline has ended: the guard
// accepts one connection at a time at the Unix socket PATH (mode 0600), says "pid NUMBER" ("ending" when the program is
// being stopped), and from then on that connection is the lifeline. When the program has ended it says "exit CODE".
//
// Report, one line on file descriptor N: "pid NUMBER" once the program runs, or "error TEXT".
// One thread; every wait is in one poll().

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace {

constexpr int kUsage = 125;
constexpr int kNotStarted = 127;

struct Options {
  int grace_ms = 5000;
  int orphan_grace_ms = 2000;
  int linger_ms = 0;
  int report_fd = -1;
  std::string socket;
  std::string shm_prefix;
  char** program = nullptr;
};

int64_t NowMs() { return arlo::now_ns() / arlo::kMs; }

// Whole `text` as a number; false when it is not one.
template <typename T>
bool Number(std::string_view text, T* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

bool Milliseconds(std::string_view seconds, int* milliseconds) {
  double number = 0;
  if (!Number(seconds, &number) || std::isnan(number) || number < 0 || number > 1e6) return false;
  *milliseconds = static_cast<int>(number * 1000);
  return true;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") {
      options->program = argv + i + 1;
      return *options->program != nullptr;
    }
    const char* equals = std::strchr(argv[i], '=');
    if (equals == nullptr) return false;
    if (argument.starts_with("--grace-s=")) {
      if (!Milliseconds(equals + 1, &options->grace_ms)) return false;
    } else if (argument.starts_with("--orphan-grace-s=")) {
      if (!Milliseconds(equals + 1, &options->orphan_grace_ms)) return false;
    } else if (argument.starts_with("--linger-s=")) {
      if (!Milliseconds(equals + 1, &options->linger_ms)) return false;
    } else if (argument.starts_with("--socket=")) {
      options->socket = equals + 1;
    } else if (argument.starts_with("--report-fd=")) {
      if (!Number(equals + 1, &options->report_fd)) return false;
    } else if (argument.starts_with("--shm-prefix=")) {
      options->shm_prefix = equals + 1;
    } else {
      return false;
    }
  }
  return false;
}

// Best effort: the reader may be gone.
void Say(int fd, const std::string& line) {
  const std::string text = line + "\n";
  if (fd >= 0) static_cast<void>(send(fd, text.data(), text.size(), MSG_NOSIGNAL));
}

// A socket address holds 107 bytes and a path may be longer, so the name is looked up in the opened folder. -1 with
// errno where it can't be made.
int Listen(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  const int directory = open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", directory, name.c_str());
  unlink(path.c_str());
  const mode_t mask = umask(0177);
  const bool ok = directory >= 0 && listener >= 0 &&
                  bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                  listen(listener, 4) == 0;
  umask(mask);
  if (directory >= 0) close(directory);
  return ok ? listener : -1;
}

void Report(int fd, const std::string& line) {
  if (fd < 0) {
    if (line.starts_with("error ")) std::fprintf(stderr, "arlo-guard: %s\n", line.c_str());
    return;
  }
  const std::string text = line + "\n";
  if (write(fd, text.data(), text.size()) < 0) std::perror("arlo-guard: report");
  close(fd);
}

// Our children now, orphans of the program included (we are the subreaper).
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (const dirent* entry = readdir(proc)) {
    pid_t pid = 0;
    if (!Number(entry->d_name, &pid)) continue;
    std::ifstream file("/proc/" + std::string(entry->d_name) + "/stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');  // the name may hold anything, so count from its last bracket
    if (name_end == std::string::npos || name_end + 4 >= line.size()) continue;
    const std::string_view fields = std::string_view(line).substr(name_end + 4);
    pid_t parent = 0;
    if (Number(fields.substr(0, fields.find(' ')), &parent) && parent == getpid()) children.push_back(pid);
  }
  closedir(proc);
  return children;
}

// Kills until no child is left; each death may hand us grandchildren.
void KillRest() {
  for (;;) {
    for (const pid_t pid : Children()) kill(pid, SIGKILL);
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
  }
}

void RemoveSharedMemory(const std::string& prefix) {
  if (prefix.empty()) return;
  DIR* shm = opendir("/dev/shm");
  if (shm == nullptr) return;
  while (const dirent* entry = readdir(shm)) {
    if (std::string_view(entry->d_name).starts_with(prefix)) unlinkat(dirfd(shm), entry->d_name, 0);
  }
  closedir(shm);
}

[[noreturn]] void RunProgram(char** program, pid_t guard, int error_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != guard) _exit(kNotStarted);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int each : {SIGHUP, SIGINT, SIGPIPE}) signal(each, SIG_DFL);  // ignored signals stay ignored over exec
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  execvp(program[0], program);
  const std::string text = std::string(program[0]) + ": " + std::strerror(errno);
  if (write(error_fd, text.data(), text.size()) < 0) _exit(kNotStarted);
  _exit(kNotStarted);
}

// Starts the program and waits until exec has happened. Returns its pid, or -1 after reporting why not.
pid_t Start(const Options& options) {
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    Report(options.report_fd, std::string("error no pipe: ") + std::strerror(errno));
    return -1;
  }
  const pid_t guard = getpid();
  const pid_t pid = fork();
  if (pid == 0) RunProgram(options.program, guard, error_pipe[1]);
  close(error_pipe[1]);
  char text[512];
  const ssize_t size = pid < 0 ? 0 : read(error_pipe[0], text, sizeof(text));
  close(error_pipe[0]);
  if (pid < 0 || size > 0) {
    Report(options.report_fd, "error " + (pid < 0 ? std::string("fork failed") : std::string(text, size)));
    return -1;
  }
  Report(options.report_fd, "pid " + std::to_string(pid));
  return pid;
}

// Reaps ended children; returns true with `status` filled when the program itself is among them.
bool Reap(pid_t program, int* status) {
  bool ended = false;
  int each = 0;
  for (pid_t pid = waitpid(-1, &each, WNOHANG); pid > 0; pid = waitpid(-1, &each, WNOHANG)) {
    if (pid == program) {
      ended = true;
      *status = each;
    }
  }
  return ended;
}

// Returns the program's wait status. `lifeline` is the descriptor of it that is left then, or -1.
int Watch(pid_t program, int signals, int listener, const Options& options, int* lifeline) {
  int64_t kill_at_ms = -1;   // -1: not asked to stop
  int64_t alone_at_ms = -1;  // when lingering ends; -1: not lingering
  int status = 0;
  const auto stop = [&](int grace_ms) {
    if (grace_ms > 0 && kill_at_ms < 0) kill(program, SIGTERM);
    const int64_t at_ms = NowMs() + grace_ms;
    if (kill_at_ms < 0 || at_ms < kill_at_ms) kill_at_ms = at_ms;
  };
  for (;;) {
    // A new owner waits in the listener's queue until the lifeline has ended.
    pollfd fds[] = {{signals, POLLIN, 0}, {*lifeline, POLLIN, 0}, {*lifeline < 0 ? listener : -1, POLLIN, 0}};
    int timeout_ms = -1;
    const int64_t next_ms = kill_at_ms >= 0 ? kill_at_ms : alone_at_ms;
    if (next_ms >= 0) timeout_ms = static_cast<int>(std::max<int64_t>(0, next_ms - NowMs()));
    if (poll(fds, 3, timeout_ms) < 0) continue;
    if (fds[0].revents != 0) {
      signalfd_siginfo info{};
      if (read(signals, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGTERM) stop(options.grace_ms);
        if (info.ssi_signo == SIGQUIT) stop(0);
        if (info.ssi_signo == SIGCHLD && Reap(program, &status)) return status;
      }
    }
    if (fds[1].revents != 0) {
      char ignored[64];
      if (read(*lifeline, ignored, sizeof(ignored)) <= 0) {
        close(*lifeline);
        *lifeline = -1;
        if (listener >= 0 && options.linger_ms > 0 && kill_at_ms < 0) {
          alone_at_ms = NowMs() + options.linger_ms;
        } else {
          stop(options.orphan_grace_ms);
        }
      }
    } else if (fds[2].revents != 0) {
      *lifeline = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (*lifeline >= 0) alone_at_ms = -1;
      Say(*lifeline, kill_at_ms < 0 ? "pid " + std::to_string(program) : "ending");
    }
    if (alone_at_ms >= 0 && NowMs() >= alone_at_ms) {
      alone_at_ms = -1;
      stop(options.orphan_grace_ms);
    }
    if (kill_at_ms >= 0 && NowMs() >= kill_at_ms) {
      kill(-program, SIGKILL);
      kill_at_ms = NowMs() + 1000;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fputs(
        "usage: arlo-guard [--grace-s=S] [--orphan-grace-s=S] [--linger-s=S --socket=PATH] [--shm-prefix=P] "
        "[--report-fd=N] -- PROGRAM ARGUMENT...\n",
        stderr);
    return kUsage;
  }
  if (options.report_fd >= 0) fcntl(options.report_fd, F_SETFD, FD_CLOEXEC);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_NAME, "arlo-guard");
  signal(SIGHUP, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  sigset_t watched;
  sigemptyset(&watched);
  for (const int each : {SIGTERM, SIGQUIT, SIGCHLD}) sigaddset(&watched, each);
  sigprocmask(SIG_BLOCK, &watched, nullptr);
  const int signals = signalfd(-1, &watched, SFD_CLOEXEC);
  if (signals < 0) {
    std::perror("arlo-guard: signalfd");
    return kNotStarted;
  }
  int listener = -1;
  if (!options.socket.empty() && (listener = Listen(options.socket)) < 0) {
    Report(options.report_fd, "error " + options.socket + ": " + std::strerror(errno));
    return kNotStarted;
  }
  const pid_t program = Start(options);
  int code = kNotStarted;
  int lifeline = STDIN_FILENO;
  if (program >= 0) {
    const int status = Watch(program, signals, listener, options, &lifeline);
    KillRest();
    RemoveSharedMemory(options.shm_prefix);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  if (listener >= 0) unlink(options.socket.c_str());
  Say(lifeline, "exit " + std::to_string(code));
  return code;
}
