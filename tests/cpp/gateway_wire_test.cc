// The reader against protobuf's own, on whole, cut and damaged messages; the writer's sizes.

#include <arlo/v1/admin.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/wire.h"
#include "gateway_fixture.h"

namespace arlo::gateway {
namespace {

using Fields = google::protobuf::UnknownFieldSet;

bool reader_accepts(const std::string& bytes) {
  wire::Reader reader(bytes);
  while (reader.next()) {
  }
  return reader.ok();
}

// (A message without fields of its own.)
bool protobuf_accepts(const std::string& bytes) { return v1::DrainReply().ParseFromString(bytes); }

std::string bytes_of(const Fields& fields) {
  std::string out;
  fields.SerializeToString(&out);
  return out;
}

// What the reader saw, written by protobuf as unknown fields.
std::string read_and_rewritten(const std::string& bytes) {
  Fields out;
  wire::Reader reader(bytes);
  while (reader.next()) {
    const auto number = static_cast<int>(reader.field());
    switch (reader.type()) {
      case wire::kVarint:
        out.AddVarint(number, reader.number());
        break;
      case wire::kFixed64:
        out.AddFixed64(number, reader.number());
        break;
      case wire::kFixed32:
        out.AddFixed32(number, static_cast<std::uint32_t>(reader.number()));
        break;
      case wire::kBytes:
        out.AddLengthDelimited(number, std::string(reader.bytes()));
        break;
    }
  }
  return bytes_of(out);
}

std::string random_fields(fixture::Random& random) {
  Fields fields;
  for (auto i = fixture::below(random, 6); i > 0; --i) {
    const int number = 1 + static_cast<int>(random() % ((1U << (1 + random() % 29)) - 1));
    switch (fixture::below(random, 4)) {
      case 0:
        fields.AddVarint(number, random() >> fixture::below(random, 64));
        break;
      case 1:
        fields.AddFixed64(number, random());
        break;
      case 2:
        fields.AddFixed32(number, static_cast<std::uint32_t>(random()));
        break;
      default:
        fields.AddLengthDelimited(number, std::string(fixture::below(random, 300), 'x'));
        break;
    }
  }
  return bytes_of(fields);
}

TEST(WireReader, ReadsWhatProtobufWrote) {
  fixture::Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string bytes = random_fields(random);
    ASSERT_TRUE(reader_accepts(bytes));
    ASSERT_EQ(read_and_rewritten(bytes), bytes);
  }
}

TEST(WireReader, AgreesWithProtobufOnEveryCut) {
  fixture::Random random(2);
  for (int i = 0; i < 50; ++i) {
    const std::string bytes = random_fields(random);
    for (std::size_t size = 0; size <= bytes.size(); ++size) {
      const std::string cut = bytes.substr(0, size);
      ASSERT_EQ(reader_accepts(cut), protobuf_accepts(cut)) << i << " at " << size;
    }
  }
}

// Where the two differ the reader must be the stricter one, and only for groups and for varints above 64 bits or tags
// above 32 bits, whose excess bits protobuf drops. What protobuf makes of those is read again without them.
TEST(WireReader, IsNeverLooserThanProtobuf) {
  fixture::Random random(3);
  int differ = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string bytes = fixture::mutated(random, random_fields(random));
    if (i % 3 == 0) {
      bytes.clear();
      for (auto k = fixture::below(random, 24); k > 0; --k) {
        bytes.push_back(static_cast<char>(fixture::chance(random, 40) ? random() | 0x80 : random() % 64));
      }
    }
    const bool ours = reader_accepts(bytes);
    v1::DrainReply theirs;
    if (!theirs.ParseFromString(bytes)) {
      ASSERT_FALSE(ours) << testing::PrintToString(bytes);
      continue;
    }
    const Fields& fields = v1::DrainReply::GetReflection()->GetUnknownFields(theirs);
    if (ours) {
      ASSERT_EQ(read_and_rewritten(bytes), bytes_of(fields));
      continue;
    }
    ++differ;
    bool group = false;
    for (int k = 0; k < fields.field_count(); ++k)
      group |= fields.field(k).type() == google::protobuf::UnknownField::TYPE_GROUP;
    ASSERT_TRUE(group || reader_accepts(bytes_of(fields))) << testing::PrintToString(bytes);
  }
  EXPECT_GT(differ, 0);
}

struct Case {
  const char* name;
  std::string bytes;
  bool accepted;
};

TEST(WireReader, KnowsTheLimits) {
  const std::string nine(9, '\x80');
  const std::vector<Case> cases = {
      {"nothing", "", true},
      {"field 0", std::string("\x00\x01", 2), false},
      {"field 0 with length", std::string("\x02\x00", 2), false},
      {"group start", "\x0b\x0c", false},
      {"group end", "\x0c", false},
      {"wire type 6", "\x0e", false},
      {"wire type 7", "\x0f", false},
      {"tag only", "\x08", false},
      {"largest field", "\xf8\xff\xff\xff\x0f\x01", true},
      {"a field above the largest", std::string("\x80\x80\x80\x80\x10\x01", 6), false},
      {"tag of five bytes, overlong", std::string("\x88\x80\x80\x80\x00\x01", 6), true},
      {"tag of six bytes", std::string("\x88\x80\x80\x80\x80\x00\x01", 7), false},
      {"varint of ten bytes", "\x08" + nine + "\x01", true},
      {"varint of 65 bits", "\x08" + nine + "\x02", false},
      {"varint of eleven bytes", "\x08" + nine + "\x80\x01", false},
      {"overlong varint", std::string("\x08\x81\x80\x00", 4), true},
      {"fixed64", "\x09" + std::string(8, '\1'), true},
      {"fixed64 cut", "\x09" + std::string(7, '\1'), false},
      {"fixed32", "\x0d" + std::string(4, '\1'), true},
      {"fixed32 cut", "\x0d" + std::string(3, '\1'), false},
      {"bytes", std::string("\x0a\x02hi"), true},
      {"bytes cut", std::string("\x0a\x03hi"), false},
      {"length of five bytes, overlong", std::string("\x0a\x82\x80\x80\x80\x00hi", 8), true},
      {"length of six bytes", std::string("\x0a\x82\x80\x80\x80\x80\x00hi", 9), false},
      {"length near 2^64", "\x0a" + std::string(9, '\xff') + "\x01hi", false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(reader_accepts(c.bytes), c.accepted) << c.name;
    EXPECT_TRUE(!c.accepted || protobuf_accepts(c.bytes)) << c.name;
  }
}

TEST(WireReader, StaysAtTheEndOnceMalformed) {
  wire::Reader reader("\x08");
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.ok());
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.ok());
}

std::vector<std::uint64_t> packed(const std::string& bytes, bool* ok) {
  std::vector<std::uint64_t> values;
  *ok = wire::for_each_packed(bytes, [&](std::uint64_t value) { values.push_back(value); });
  return values;
}

TEST(WirePacked, ReadsWhatProtobufWroteAndRefusesTheRest) {
  fixture::Random random(4);
  bool ok = false;
  for (int i = 0; i < 500; ++i) {
    inference::InferTensorContents contents;
    for (auto k = fixture::below(random, 20); k > 0; --k) {
      contents.add_uint64_contents(random() >> fixture::below(random, 64));
    }
    const std::string bytes = contents.SerializeAsString();
    if (bytes.empty()) continue;
    wire::Reader reader(bytes);
    ASSERT_TRUE(reader.next());
    const std::string inner(reader.bytes());
    const std::vector<std::uint64_t> expected(contents.uint64_contents().begin(), contents.uint64_contents().end());
    ASSERT_EQ(packed(inner, &ok), expected);
    ASSERT_TRUE(ok);
    packed(inner + '\x80', &ok);
    ASSERT_FALSE(ok);
  }
  const std::string nine(9, '\xff');
  EXPECT_EQ(packed(nine + '\x01', &ok), std::vector{std::numeric_limits<std::uint64_t>::max()});
  EXPECT_TRUE(ok);
  packed(nine + '\x02', &ok);
  EXPECT_FALSE(ok);
  packed(nine + "\x81\x01", &ok);
  EXPECT_FALSE(ok);
  EXPECT_TRUE(packed("", &ok).empty());
  EXPECT_TRUE(ok);
}

TEST(WireWriter, SizesAreWhatIsWritten) {
  std::vector<std::uint64_t> values = {0, 1, 127, 128, 16383, 16384, std::numeric_limits<std::uint64_t>::max()};
  for (int bit = 0; bit < 64; ++bit) values.push_back(std::uint64_t{1} << bit);
  for (const auto value : values) {
    char out[16];
    wire::Writer writer(out);
    writer.varint(value);
    const auto size = static_cast<std::size_t>(writer.at() - out);
    ASSERT_EQ(size, wire::varint_size(value)) << value;
    bool ok = false;
    ASSERT_EQ(packed({out, size}, &ok), std::vector{value});
  }
  for (const std::size_t size : {0, 1, 127, 128, 16383, 16384}) {
    const std::string value(size, 'v');
    std::string out(size + 16, '\xee');
    wire::Writer writer(out.data());
    writer.bytes(15, value);
    const auto written = static_cast<std::size_t>(writer.at() - out.data());
    ASSERT_EQ(written, wire::field_size(size));
    wire::Reader reader(std::string_view(out).substr(0, written));
    ASSERT_TRUE(reader.next());
    EXPECT_TRUE(reader.is(15, wire::kBytes));
    EXPECT_EQ(reader.bytes(), value);
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.ok());
  }
  char out[4] = {1, 2, 3, 4};
  wire::Writer writer(out);
  writer.raw(nullptr, 0);
  writer.zeros(3);
  EXPECT_EQ(writer.at(), out + 3);
  EXPECT_EQ(std::memcmp(out, "\0\0\0\4", 4), 0);
}

}  // namespace
}  // namespace arlo::gateway
