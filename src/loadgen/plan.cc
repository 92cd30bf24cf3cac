#include "loadgen/plan.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

namespace arlo::loadgen {

namespace {
constexpr char kMagic[] = "ARLOPLN1";
}

Plan::Plan(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error("cannot open plan " + path + ": " + std::strerror(errno));
  struct stat info;
  void* map = MAP_FAILED;
  if (fstat(fd, &info) == 0 && info.st_size > 0) {
    size_ = static_cast<size_t>(info.st_size);
    map = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
  }
  close(fd);
  if (map == MAP_FAILED) throw std::runtime_error("cannot map plan " + path);
  map_ = static_cast<const char*>(map);
  try {
    Parse(path);
  } catch (...) {
    munmap(const_cast<char*>(map_), size_);
    throw;
  }
}

Plan::~Plan() { munmap(const_cast<char*>(map_), size_); }

void Plan::Parse(const std::string& path) {
  const auto require = [&path](bool ok, const char* what) {
    if (!ok) throw std::runtime_error(path + " is not a usable plan: " + what);
  };
  require(size_ >= 24 && std::memcmp(map_, kMagic, 8) == 0, "wrong header");
  uint64_t n = 0, p = 0;
  std::memcpy(&n, map_ + 8, 8);
  std::memcpy(&p, map_ + 16, 8);
  require(n < (1ULL << 32) && p > 0 && p < (1ULL << 32), "unreasonable counts");
  const uint64_t payload_bytes = (n * 4 + 7) / 8 * 8;
  const uint64_t header = 24 + n * 8 + payload_bytes + n * 8 + (p + 1) * 8;
  require(size_ >= header, "cut short");

  const char* at = map_ + 24;
  send_at_us_ = {reinterpret_cast<const int64_t*>(at), n};
  at += n * 8;
  payload_ = {reinterpret_cast<const uint32_t*>(at), n};
  at += payload_bytes;
  timeout_us_ = {reinterpret_cast<const int64_t*>(at), n};
  at += n * 8;
  offset_ = {reinterpret_cast<const uint64_t*>(at), p + 1};
  bytes_ = map_ + header;

  require(offset_[0] == 0 && offset_[p] == size_ - header, "payload sizes do not match the file");
  for (size_t i = 0; i < p; ++i) require(offset_[i] <= offset_[i + 1], "payload offsets go back");
  for (size_t i = 0; i < n; ++i) {
    require(payload_[i] < p, "an entry names a payload that is not there");
    require(send_at_us_[i] >= 0 && timeout_us_[i] >= 0, "negative time");
    require(i == 0 || send_at_us_[i - 1] <= send_at_us_[i], "entries are not in order of time");
  }
}

}  // namespace arlo::loadgen
