#include "loadgen/options.h"

#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>

#include "base/ascii.h"

namespace arlo::loadgen {

const char kUsage[] = R"(arlo-loadgen open|closed --target HOST:PORT --plan FILE --records FILE.npy [flags]

open     send each request of the plan at its time, whether or not earlier ones were answered
closed   keep --concurrency requests in flight, for --requests N or --seconds T, cycling through the plan's payloads

  --responses FILE       keep raw responses: (uint32 index, uint32 bytes, ModelInferResponse) each
  --response-every N     of every n-th request only (1)
  --channels N           connections (4)            --threads N       completion threads (1)
  --warmup N             unrecorded requests first (0)
  --slo-us N             what counts as on time in the progress lines
  --late-us N            a send later than this is counted (1000)
  --drain-s X            wait for answers after the last send (60)
  --grace-s X            the same after SIGINT (1)
  --connect-s X          wait for the target (10)   --progress-s X    between progress lines (0.5)
  --concurrency N (1)    --requests N               --seconds X       closed loop
  --tls --ca-file F --cert-file F --key-file F --server-name NAME     PEM files
  --token-file F         bearer token

Progress and the final report are JSON lines on stdout. Exit status: 0 done, 2 bad flags or files, 3 target not reached,
130 stopped by a signal.
)";

namespace {

template <typename T>
void ParseNumber(std::string_view name, std::string_view text, T* out) {
  if (!read_number(text, out) || *out < 0) {
    throw std::invalid_argument(std::string(name) + " takes a number of 0 or more, not '" + std::string(text) + "'");
  }
}

}  // namespace

Options ParseOptions(int argc, char** argv) {
  Options o;
  if (argc < 2) throw std::invalid_argument("say open or closed");
  const std::string_view mode = argv[1];
  if (mode == "open") {
    o.mode = Options::Mode::kOpen;
  } else if (mode == "closed") {
    o.mode = Options::Mode::kClosed;
  } else {
    throw std::invalid_argument("the first argument is open or closed, not '" + std::string(mode) + "'");
  }

  std::map<std::string_view, std::function<void(std::string_view)>> flags;
  const auto text = [&flags](const char* name, std::string* out) {
    flags[name] = [out](std::string_view v) { *out = v; };
  };
  const auto number = [&flags](const char* name, auto* out) {
    flags[name] = [name, out](std::string_view v) { ParseNumber(name, v, out); };
  };
  text("--target", &o.target);
  text("--plan", &o.plan);
  text("--records", &o.records);
  text("--responses", &o.responses);
  text("--ca-file", &o.ca_file);
  text("--cert-file", &o.cert_file);
  text("--key-file", &o.key_file);
  text("--server-name", &o.server_name);
  text("--token-file", &o.token_file);
  number("--response-every", &o.response_every);
  number("--channels", &o.channels);
  number("--threads", &o.threads);
  number("--warmup", &o.warmup);
  number("--slo-us", &o.slo_us);
  number("--late-us", &o.late_us);
  number("--drain-s", &o.drain_s);
  number("--grace-s", &o.grace_s);
  number("--connect-s", &o.connect_s);
  number("--progress-s", &o.progress_s);
  number("--concurrency", &o.concurrency);
  number("--requests", &o.requests);
  number("--seconds", &o.seconds);

  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--tls") {
      o.tls = true;
      continue;
    }
    const auto flag = flags.find(argv[i]);
    if (flag == flags.end()) throw std::invalid_argument("unknown flag '" + std::string(argv[i]) + "'");
    if (++i == argc) throw std::invalid_argument(std::string(flag->first) + " takes a value");
    flag->second(argv[i]);
  }

  if (o.target.empty() || o.plan.empty() || o.records.empty()) {
    throw std::invalid_argument("--target, --plan and --records are needed");
  }
  if (o.channels == 0 || o.threads == 0 || o.concurrency == 0 || o.response_every == 0) {
    throw std::invalid_argument("--channels, --threads, --concurrency and --response-every are at least 1");
  }
  if (o.progress_s < 0.01) throw std::invalid_argument("--progress-s is at least 0.01");
  if (o.mode == Options::Mode::kClosed && o.requests == 0 && o.seconds == 0) {
    throw std::invalid_argument("closed needs --requests or --seconds");
  }
  if (o.cert_file.empty() != o.key_file.empty()) {
    throw std::invalid_argument("--cert-file and --key-file go together");
  }
  return o;
}

}  // namespace arlo::loadgen
