#include "loadgen/records.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace arlo::loadgen {

namespace {

// The fields of Record in order; a change here is a change of Record.
constexpr char kDescr[] =
    "[('index', '<u4'), ('payload', '<u4'), ('scheduled_us', '<i8'), ('sent_us', '<i8'), ('done_us', '<i8'), "
    "('code', 'u1'), ('error', 'u1'), ('demoted', 'i1'), ('reserved', 'i1'), ('level', '<i4'), ('queue_us', '<i8'), "
    "('execute_us', '<i8'), ('total_us', '<i8'), ('computed_tokens', '<i8'), ('max_length', '<i4')]";

}  // namespace

void WriteRecords(const std::string& path, std::vector<Record> records) {
  std::erase_if(records, [](const Record& r) { return r.code == kNotSent; });
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.index < b.index; });

  std::string header = std::string("{'descr': ") + kDescr + ", 'fortran_order': False, 'shape': (" +
                       std::to_string(records.size()) + ",), }";
  // npy 1.0: magic, version, uint16 header size; padded with spaces so that the data starts at a multiple of 64.
  while ((10 + header.size() + 1) % 64 != 0) header.push_back(' ');
  header.push_back('\n');
  const uint16_t size = static_cast<uint16_t>(header.size());

  FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  bool ok = std::fwrite("\x93NUMPY\x01\x00", 1, 8, file) == 8 && std::fwrite(&size, 2, 1, file) == 1 &&
            std::fwrite(header.data(), 1, header.size(), file) == header.size() &&
            std::fwrite(records.data(), sizeof(Record), records.size(), file) == records.size();
  ok = std::fclose(file) == 0 && ok;
  if (!ok) throw std::runtime_error("cannot write " + path + ": disk full?");
}

}  // namespace arlo::loadgen
