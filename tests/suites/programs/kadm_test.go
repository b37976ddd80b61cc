// What a program that watches brokers, as kminion does, asks with kadm, against $SUITE_BROKER: sizes, ends and lags.
package kadm_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 3

type watched struct {
	*kadm.Client
	t     *testing.T
	ctx   context.Context
	kafka *kgo.Client
	topic string
	sent  int
}

// A topic whose partition i has (i + 1) * 10 records.
func fresh(t *testing.T) *watched {
	ctx, done := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(done)
	seeds, partitioner := kgo.SeedBrokers(os.Getenv("SUITE_BROKER")), kgo.RecordPartitioner(kgo.ManualPartitioner())
	kafka, err := kgo.NewClient(seeds, partitioner)
	no(t, err)
	t.Cleanup(kafka.Close)
	found := &watched{kadm.NewClient(kafka), t, ctx, kafka, fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano()), 0}
	_, err = found.CreateTopic(ctx, partitions, 1, nil, found.topic)
	no(t, err)
	for partition := range int32(partitions) {
		found.send(partition, int(partition+1)*10)
	}
	return found
}

func (w *watched) send(partition int32, count int) {
	for range count {
		record := &kgo.Record{Topic: w.topic, Partition: partition, Value: fmt.Append(nil, w.sent)}
		no(w.t, w.kafka.ProduceSync(w.ctx, record).FirstErr())
		w.sent++
	}
}

func (w *watched) commit(group string, offsets ...int64) {
	all := kadm.Offsets{}
	for partition, offset := range offsets {
		all.AddOffset(w.topic, int32(partition), offset, -1)
	}
	no(w.t, w.CommitAllOffsets(w.ctx, group, all))
}

func no(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, found, wanted T) {
	t.Helper()
	if found != wanted {
		t.Fatalf("%v, and not %v", found, wanted)
	}
}

func TestEndsOfPartitions(t *testing.T) {
	w := fresh(t)
	_, err := w.DeleteRecords(w.ctx, kadm.OffsetsList{{Topic: w.topic, Partition: 1, At: 5}}.Offsets())
	no(t, err)
	starts, err := w.ListStartOffsets(w.ctx, w.topic)
	no(t, err)
	ends, err := w.ListEndOffsets(w.ctx, w.topic)
	no(t, err)
	for partition, start := range []int64{0, 5, 0} {
		first, _ := starts.Lookup(w.topic, int32(partition))
		end, _ := ends.Lookup(w.topic, int32(partition))
		equal(t, [2]int64{first.Offset, end.Offset}, [2]int64{start, int64(partition+1) * 10})
	}
}

func TestLagOfAnEmptyGroup(t *testing.T) {
	w := fresh(t)
	w.commit(w.topic, 10, 4, 0)
	lags, err := w.Lag(w.ctx, w.topic)
	no(t, err)
	lag := lags[w.topic]
	no(t, lag.Error())
	equal(t, lag.State, "Empty")
	equal(t, lag.Lag.Total(), 0+16+30)
	w.send(0, 7)
	lags, err = w.Lag(w.ctx, w.topic)
	no(t, err)
	one, _ := lags[w.topic].Lag.Lookup(w.topic, 0)
	equal(t, [3]int64{one.Commit.At, one.End.Offset, one.Lag}, [3]int64{10, 17, 7})
}

func TestLagOfAMember(t *testing.T) {
	w := fresh(t)
	member, err := kgo.NewClient(
		kgo.SeedBrokers(os.Getenv("SUITE_BROKER")), kgo.ConsumerGroup(w.topic), kgo.ConsumeTopics(w.topic), kgo.ClientID("m"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
	)
	no(t, err)
	defer member.Close()
	for read := 0; read < w.sent; {
		fetched := member.PollFetches(w.ctx)
		no(t, fetched.Err())
		read += fetched.NumRecords()
	}
	no(t, member.CommitUncommittedOffsets(w.ctx))
	w.send(2, 5)
	lags, err := w.Lag(w.ctx, w.topic)
	no(t, err)
	lag := lags[w.topic]
	equal(t, lag.State, "Stable")
	equal(t, lag.Lag.Total(), 5)
	for partition := range int32(partitions) {
		one, _ := lag.Lag.Lookup(w.topic, partition)
		equal(t, one.Member.ClientID, "m")
	}
}

func TestGroupsAreListed(t *testing.T) {
	w := fresh(t)
	w.commit(w.topic, 1, 1, 1)
	for _, state := range []string{"Empty", "Stable"} {
		groups, err := w.ListGroups(w.ctx, state)
		no(t, err)
		_, there := groups[w.topic]
		equal(t, there, state == "Empty")
	}
	offsets, err := w.FetchOffsets(w.ctx, w.topic)
	no(t, err)
	equal(t, len(offsets.Sorted()), partitions)
}

func TestSizesOfPartitions(t *testing.T) {
	w := fresh(t)
	metadata, err := w.Metadata(w.ctx, w.topic)
	no(t, err)
	equal(t, len(metadata.Topics[w.topic].Partitions), partitions)
	ofAll, err := w.DescribeAllLogDirs(w.ctx, nil)
	no(t, err)
	seen := 0
	for node, folders := range ofAll {
		no(t, folders.Error())
		folders.EachPartition(func(one kadm.DescribedLogDirPartition) {
			if one.Topic != w.topic {
				return
			}
			seen++
			equal(t, metadata.Topics[w.topic].Partitions[one.Partition].Leader, node)
			if one.Size <= 0 {
				t.Fatalf("partition %d has %d bytes", one.Partition, one.Size)
			}
		})
	}
	equal(t, seen, partitions)
}

func TestSettingsAndVersionsOfBrokers(t *testing.T) {
	w := fresh(t)
	brokers, err := w.ListBrokers(w.ctx)
	no(t, err)
	for _, id := range brokers.NodeIDs() {
		settings, err := w.DescribeBrokerConfigs(w.ctx, id)
		no(t, err)
		if len(settings) != 1 || len(settings[0].Configs) == 0 {
			t.Fatalf("broker %d has no settings", id)
		}
	}
	versions, err := w.ApiVersions(w.ctx)
	no(t, err)
	equal(t, len(versions), len(brokers))
	topics, err := w.DescribeTopicConfigs(w.ctx, w.topic)
	no(t, err)
	for _, setting := range topics[0].Configs {
		if setting.Key == "retention.ms" {
			return
		}
	}
	t.Fatal("retention.ms is not shown")
}
