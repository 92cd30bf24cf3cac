#include "loadgen/records.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "base/wire.h"

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

namespace {

// ModelInferResponse.parameters, map<string, InferParameter>; the oneof of InferParameter.
constexpr uint32_t kParameters = 4;
constexpr uint32_t kBool = 1, kInt64 = 2, kUint64 = 5;

// An integer or bool parameter; empty for other kinds.
bool ScanValue(std::string_view bytes, std::optional<int64_t>* value) {
  wire::Reader reader(bytes);
  while (reader.next()) {
    const uint32_t field = reader.field();
    if (reader.type() == wire::kVarint && (field == kBool || field == kInt64 || field == kUint64)) {
      *value = static_cast<int64_t>(reader.number());
    }
  }
  return reader.ok();
}

bool ScanParameter(std::string_view bytes, Record* record) {
  std::string_view key;
  std::optional<int64_t> value;
  wire::Reader reader(bytes);
  while (reader.next()) {
    if (reader.is(1, wire::kBytes)) key = reader.bytes();
    if (reader.is(2, wire::kBytes) && !ScanValue(reader.bytes(), &value)) return false;
  }
  if (!value) return reader.ok();
  if (key == "level") record->level = static_cast<int32_t>(*value);
  if (key == "max_length") record->max_length = static_cast<int32_t>(*value);
  if (key == "demoted") record->demoted = *value != 0;
  if (key == "queue_us") record->queue_us = *value;
  if (key == "execute_us") record->execute_us = *value;
  if (key == "total_us") record->total_us = *value;
  if (key == "computed_tokens") record->computed_tokens = *value;
  return reader.ok();
}

}  // namespace

bool ScanResponse(std::string_view bytes, Record* record) {
  wire::Reader reader(bytes);
  while (reader.next()) {
    if (reader.is(kParameters, wire::kBytes) && !ScanParameter(reader.bytes(), record)) return false;
  }
  return reader.ok();
}

}  // namespace arlo::loadgen
