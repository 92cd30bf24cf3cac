#include "plugins/emulated/records.h"

#include <cstring>
#include <fstream>
#include <stdexcept>

namespace arlo::triton {
namespace {

constexpr char kMagic[] = "ARLOREC1";

bool Read(std::ifstream& file, std::vector<float>& into, int64_t count) {
  into.resize(static_cast<size_t>(count));
  file.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size() * sizeof(float)));
  return static_cast<bool>(file);
}

}  // namespace

Records::Records(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto bad = [&path](const char* what) { return std::invalid_argument("records " + path + ": " + what); };
  if (!file) throw bad("cannot be read");
  char magic[8];
  int32_t sizes[3];
  if (!file.read(magic, sizeof(magic)) || std::memcmp(magic, kMagic, sizeof(magic)) != 0) throw bad("are none");
  if (!file.read(reinterpret_cast<char*>(sizes), sizeof(sizes))) throw bad("are cut short");
  if (sizes[0] < 1 || sizes[1] < 1 || sizes[2] < 0) throw bad("have impossible sizes");
  count_ = sizes[0];
  labels_ = sizes[1];
  tokens_ = sizes[2];
  if (!Read(file, logits_, count_ * labels_) || !Read(file, importance_, count_ * tokens_)) throw bad("are cut short");
}

}  // namespace arlo::triton
