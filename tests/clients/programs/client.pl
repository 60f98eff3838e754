# A queue by Perl's Cache::Memcached: `client.pl PORT QUEUE`. A line for each operation.
use strict;
use warnings;
use Cache::Memcached;

my ($port, $queue) = @ARGV;
my $client = Cache::Memcached->new({servers => ["127.0.0.1:$port"]});
my $large  = "x" x 200_000;
my $odd    = join("", map { chr } 0 .. 255) . "\r\nflush_all\r\n";

sub said { my $data = shift; return defined $data ? $data : "none" }
sub ok { return shift() ? "ok" : "failed" }

my ($host) = values %{$client->stats("misc")->{hosts}};
print "version ", $host->{misc}{version}, "\n";
print "set ", ok($client->set($queue, "hello")), "\n";
print "get ", said($client->get($queue)), "\n";
print "empty ", said($client->get($queue)), "\n";
print "large ", ok($client->set($queue, $large) && said($client->get($queue)) eq $large), "\n";
print "any-bytes ", ok($client->set($queue, $odd) && said($client->get($queue)) eq $odd), "\n";
print "reliable ", ok($client->set($queue, "job") && said($client->get("$queue/open")) eq "job"), "\n";
print "close ", said($client->get("$queue/close")), "\n";
print "delete ", ok($client->delete($queue)), "\n";
