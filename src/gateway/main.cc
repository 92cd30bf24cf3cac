// arlo-gateway --config FILE: the data plane as a program. All logic is in the library.
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "gateway/config.h"
#include "gateway/server.h"

int main(int argc, char** argv) {
  constexpr const char* kUsage =
      "usage: arlo-gateway --config FILE [--check]\n\n"
      "Arlo's gateway. FILE is the JSON that `arlo serve gateway CONFIG.toml` and `arlo serve` write "
      "(arlo.v1.GatewayConfig);\n"
      "--check only checks it. SIGTERM drains, a second signal ends at once.\n";
  const char* path = nullptr;
  bool check_only = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--config") == 0 && i + 1 < argc) {
      path = argv[++i];
    } else if (std::strcmp(argv[i], "--check") == 0) {
      check_only = true;
    } else if (std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0) {
      std::fputs(kUsage, stdout);
      return 0;
    } else {
      std::fprintf(stderr, "arlo-gateway: unknown argument '%s'\n%s", argv[i], kUsage);
      return 2;
    }
  }
  if (path == nullptr) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    const auto config = arlo::gateway::load_config(path);
    return check_only ? 0 : arlo::gateway::serve(config);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "arlo-gateway: error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "arlo-gateway: error: %s\n", error.what());
    return 1;
  }
}
