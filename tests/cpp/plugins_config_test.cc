// The emulated engine's configuration. Latency tables are read and compared in tests/property/test_latency_table.py.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "plugins/emulated/config.h"

namespace arlo::triton {
namespace {

TEST(LatencyTable, RefusesWhatIsNotAPoint) {
  for (const char* text : {"", "64", "64:1", "64:1:2:3", "64:1:x", "0:1:5", "64:0:5", "64:1:-1", "64:1:5,", ",64:1:5",
                           "64:1:99999999999999999999", "64:1:5,64:1:6"}) {
    EXPECT_THROW(ParseLatency(text), std::invalid_argument) << text;
  }
}

std::string Config(const std::string& parameters, const std::string& outputs = "", int max_batch_size = 1) {
  const std::string pooled = R"({"name": "embedding", "data_type": "TYPE_FP32", "dims": [4]})";
  return R"({"name": "m", "max_batch_size": )" + std::to_string(max_batch_size) + R"(, "output": [)" +
         (outputs.empty() ? pooled : outputs) + R"(], "parameters": {)" + parameters + "}}";
}

std::string Parameter(const std::string& name, const std::string& value) {
  return '"' + name + R"(": {"string_value": ")" + value + "\"}";
}

const std::string kLatency = Parameter("latency_us", "64:1:1150");

TEST(EmulatedConfig, HasDefaults) {
  const EmulatedConfig config = EmulatedConfig::FromJson(Config(kLatency));
  EXPECT_EQ(config.latency.at(64, 1), 1'150'000);
  EXPECT_FALSE(config.dynamic);
  EXPECT_EQ(config.jitter, 0);
  EXPECT_EQ(config.ids, "input_ids");
  EXPECT_EQ(config.mask, "attention_mask");
  EXPECT_EQ(config.load_delay_ms, 0);
  EXPECT_TRUE(config.fail_load.empty());
  ASSERT_EQ(config.outputs.size(), 1U);
  EXPECT_FALSE(config.outputs[0].token_level);
  EXPECT_EQ(config.outputs[0].dim, 4);
}

TEST(EmulatedConfig, ReadsEveryParameter) {
  const std::string token = R"({"name": "hidden", "data_type": "TYPE_FP32", "dims": [-1, 3]})";
  const EmulatedConfig config = EmulatedConfig::FromJson(
      Config(kLatency + "," + Parameter("dynamic", "true") + "," + Parameter("jitter", "0.25") + "," +
                 Parameter("seed", "18446744073709551615") + "," + Parameter("ids", "tokens") + "," +
                 Parameter("mask", "used") + "," + Parameter("load_delay_ms", "40") + "," +
                 Parameter("fail_load", "no memory"),
             token));
  EXPECT_TRUE(config.dynamic);
  EXPECT_EQ(config.jitter, 0.25);
  EXPECT_EQ(config.seed, UINT64_MAX);
  EXPECT_EQ(config.ids, "tokens");
  EXPECT_EQ(config.mask, "used");
  EXPECT_EQ(config.load_delay_ms, 40);
  EXPECT_EQ(config.fail_load, "no memory");
  EXPECT_TRUE(config.outputs[0].token_level);
  EXPECT_EQ(config.outputs[0].dim, 3);
}

// The message must name what is wrong.
void ExpectRefused(const std::string& json, const std::string& named) {
  try {
    EmulatedConfig::FromJson(json);
    FAIL() << "accepted: " << json;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(EmulatedConfig, RefusesWhatItCanNotHonour) {
  ExpectRefused(Config(""), "latency_us is missing");
  ExpectRefused(Config(kLatency, "", 0), "max_batch_size");
  ExpectRefused(Config(kLatency + "," + Parameter("colour", "red")), "unknown parameter colour");
  ExpectRefused(Config(kLatency + "," + Parameter("jitter", "1.5")), "jitter");
  ExpectRefused(Config(kLatency + "," + Parameter("jitter", "nan")), "jitter");
  ExpectRefused(Config(kLatency + "," + Parameter("dynamic", "yes")), "dynamic");
  ExpectRefused(Config(kLatency + "," + Parameter("load_delay_ms", "-1")), "load_delay_ms");
  ExpectRefused(Config(kLatency, R"({"name": "o", "data_type": "TYPE_INT64", "dims": [4]})"), "output o");
  ExpectRefused(Config(kLatency, R"({"name": "o", "data_type": "TYPE_FP32", "dims": [4, -1]})"), "output o");
  ExpectRefused(Config(kLatency, R"({"name": "o", "data_type": "TYPE_FP32", "dims": [1, 2, 3]})"), "output o");
  ExpectRefused("{", "not understood");
  ExpectRefused("[]", "not understood");
  ExpectRefused(R"({"max_batch_size": 1, "parameters": {}})", "not understood");
}

}  // namespace
}  // namespace arlo::triton
