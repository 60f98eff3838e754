# A cache by Perl's Cache::Memcached: `cache.pl PORT`. A line for each operation.
use strict;
use warnings;
use Cache::Memcached;

my $client = Cache::Memcached->new({servers => ["127.0.0.1:$ARGV[0]"]});
my $large  = "x" x 900_000;
my $odd    = join("", map { chr } 0 .. 255) . "\r\nflush_all\r\n";

sub say_of { my ($operation, $well) = @_; print "$operation ", $well ? "ok" : "failed", "\n" }
sub is_it { my ($key, $data) = @_; my $got = $client->get($key); return defined $got && $got eq $data }

say_of("set", $client->set("key", "hello"));
say_of("get", is_it("key", "hello"));
say_of("missing", !defined $client->get("nothing"));
say_of("add", $client->add("other", "1") && !$client->add("other", "2"));
say_of("replace", $client->replace("other", "10"));
my $many = $client->get_multi("key", "other", "nothing");
say_of("many", join(" ", sort keys %$many) eq "key other" && $many->{other} eq "10");
say_of("incr", $client->set("n", "10") && $client->incr("n", 5) == 15);
say_of("decr", $client->decr("n", 20) == 0);
say_of("append", $client->set("text", "b") && $client->append("text", "c") && is_it("text", "bc"));
say_of("prepend", $client->prepend("text", "a") && is_it("text", "abc"));
say_of("expiry", $client->set("key", "x", 3_000_000) && !defined $client->get("key"));
say_of("large", $client->set("large", $large) && is_it("large", $large));
say_of("any-bytes", $client->set("odd", $odd) && is_it("odd", $odd));
say_of("delete", $client->delete("odd") && !defined $client->get("odd"));
$client->flush_all;
say_of("flush_all", !defined $client->get("large"));
