// Command line of arlo-loadgen. Called by programs (arlo.replay, benches), so it is strict and has few defaults.
#pragma once

#include <cstdint>
#include <string>

namespace arlo::loadgen {

struct Options {
  enum class Mode { kOpen, kClosed };
  Mode mode = Mode::kOpen;

  std::string target;           // host:port
  std::string plan;             // file, see plan.h
  std::string records;          // .npy file to write, see records.h
  std::string responses;        // file for raw responses; empty: none
  uint32_t response_every = 1;  // keep the response of every n-th request

  uint32_t channels = 4;  // connections
  uint32_t threads = 1;   // completion threads
  uint32_t warmup = 0;    // requests sent and answered before the clock starts; not recorded

  int64_t slo_us = 0;       // for the progress lines; 0: every answer counts as on time
  int64_t late_us = 1000;   // a send later than this is counted as late
  double drain_s = 60;      // how long to wait for answers after the last send
  double grace_s = 1;       // the same after SIGINT or SIGTERM
  double connect_s = 10;    // how long the target may take to accept the connections
  double progress_s = 0.5;  // between progress lines

  uint32_t concurrency = 1;  // closed loop
  uint64_t requests = 0;     // closed loop: how many in all; 0: until `seconds`
  double seconds = 0;        // closed loop: how long; 0: until `requests`

  bool tls = false;
  std::string ca_file, cert_file, key_file;  // PEM
  std::string server_name;                   // name to expect in the certificate; empty: the target's host
  std::string token_file;                    // bearer token, sent as `authorization`
};

// Throws std::invalid_argument with the reason.
Options ParseOptions(int argc, char** argv);

extern const char kUsage[];

}  // namespace arlo::loadgen
