// The HTTP port's requests and answers, and addresses as the configuration writes them.

#include <gtest/gtest.h>

#include <string>

#include "gateway/front/http/http_message.h"
#include "transport/listener.h"

namespace arlo::gateway {
namespace {

TEST(HttpMessage, ARequestIsReadOnceItsHeadIsThere) {
  const std::string head = "GET /metrics?name=x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
  for (std::size_t size = 0; size < head.size(); ++size) {
    EXPECT_FALSE(read_request(std::string_view(head).substr(0, size)).has_value());
  }
  const std::string bytes = head + "GET /livez";
  const auto request = read_request(bytes);
  ASSERT_TRUE(request.has_value());
  EXPECT_TRUE(request->good);
  EXPECT_FALSE(request->closes);
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/metrics");
  EXPECT_EQ(request->size, head.size());
}

TEST(HttpMessage, TheConnectionEndsAfterSomeRequests) {
  for (const std::string rest : {"HTTP/1.0\r\n", "HTTP/1.1\r\nCONNECTION:  Close \r\n"}) {
    const std::string bytes = "GET / " + rest + "\r\n";
    const auto request = read_request(bytes);
    ASSERT_TRUE(request.has_value()) << rest;
    EXPECT_TRUE(request->good && request->closes) << rest;
  }
}

TEST(HttpMessage, WhatIsNoRequestIsSeen) {
  for (const std::string line : {" ", "GET", "GET /livez", "GET /livez HTTP/2", "\x16\x03\x01", "GET livez HTTP/1.1",
                                 "GET ftp://a/ HTTP/1.1", "GET http:///a HTTP/1.1"}) {
    const std::string bytes = line + "\r\n\r\n";
    const auto request = read_request(bytes);
    ASSERT_TRUE(request.has_value()) << line;
    EXPECT_FALSE(request->good) << line;
    EXPECT_GT(request->size, 0U);
  }
}

TEST(HttpMessage, EmptyLinesBeforeARequestAreSkipped) {
  EXPECT_FALSE(read_request("\r\n\r\n").has_value());
  const std::string bytes = "\r\n\r\nGET /livez HTTP/1.0\r\n\r\n";
  const auto request = read_request(bytes);
  ASSERT_TRUE(request.has_value());
  EXPECT_TRUE(request->good);
  EXPECT_EQ(request->size, bytes.size());
  EXPECT_FALSE(read_request(" \r\nGET /livez HTTP/1.0\r\n\r\n")->good);
}

TEST(HttpMessage, ATargetMayHaveAHost) {
  for (const std::string target : {"http://a/b?c", "HTTPS://[::1]:80/b?c", "/b?c"}) {
    const auto bytes = "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n";
    const auto request = read_request(bytes);
    ASSERT_TRUE(request.has_value() && request->good) << target;
    EXPECT_EQ(request->path, "/b") << target;
    EXPECT_EQ(request->query, "c") << target;
    for (const std::size_t cut : {bytes.size(), target.size() + 4, target.size() + 5}) {
      EXPECT_EQ(target_of(std::string_view(bytes).substr(0, cut)), "/b") << target;
    }
  }
  EXPECT_EQ(target_of("GET"), "");
  EXPECT_EQ(read_request("GET http://a?b HTTP/1.0\r\n\r\n")->path, "/");
}

TEST(HttpMessage, ARequestHasOneHost) {
  const auto addressed = [](const std::string& lines, const std::string& version = "HTTP/1.1") {
    return read_request("GET / " + version + "\r\n" + lines + "\r\n")->addressed;
  };
  EXPECT_TRUE(addressed("Host: a\r\n"));
  EXPECT_TRUE(addressed("Host:\r\n"));
  EXPECT_TRUE(addressed("", "HTTP/1.0"));
  for (const std::string lines : {"", "Host: a\r\nhost: a\r\n", "Host: a b\r\n", "Host: a/b\r\n", "Host: u@a\r\n"}) {
    EXPECT_FALSE(addressed(lines)) << lines;
  }
  EXPECT_FALSE(addressed("Host: a\r\nHost: b\r\n", "HTTP/1.0"));
}

TEST(HttpMessage, AnAnswerSaysHowLongItIs) {
  EXPECT_EQ(write_answer({.body = "no\n", .type = "text/plain", .status = 503}, false, false),
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nno\n");
  EXPECT_EQ(write_answer({.body = "ok\n", .type = "text/plain"}, true, true),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\n");
}

TEST(Address, HostAndPort) {
  const auto plain = transport::parse_address("gateway.local:80");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->host, "gateway.local");
  EXPECT_EQ(plain->port, 80);
  const auto six = transport::parse_address("[::1]:0");
  ASSERT_TRUE(six.has_value());
  EXPECT_EQ(six->host, "::1");
  EXPECT_EQ(six->port, 0);
  for (const char* wrong : {"", "host", ":80", "host:", "host:x", "host:-1", "host:65536", "host:80x", "::1:80", "[]:1",
                            "[::1:80", "[::1]"}) {
    EXPECT_FALSE(transport::parse_address(wrong).has_value()) << wrong;
  }
}

TEST(Address, WhatOnlyThisMachineReaches) {
  for (const char* local : {"127.0.0.1:1", "127.1.2.3:0", "[::1]:5", "localhost:80", "unix:/run/arlo.sock"}) {
    EXPECT_TRUE(transport::is_local(local)) << local;
  }
  for (const char* open : {"0.0.0.0:1", "[::]:1", "10.0.0.1:80", "gateway:80", "unix:", ""}) {
    EXPECT_FALSE(transport::is_local(open)) << open;
  }
  EXPECT_EQ(transport::unix_path("unix:/run/arlo.sock"), "/run/arlo.sock");
  EXPECT_EQ(transport::unix_path("127.0.0.1:1"), "");
}

}  // namespace
}  // namespace arlo::gateway
